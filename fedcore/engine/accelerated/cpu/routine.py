"""Vector-code functions, compiled for this machine at their first call for a data type and kept."""

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import llvmlite.binding as llvm
from llvmlite import ir

from fedcore.engine.accelerated.cpu.simd import WORD, Emitter, Matrix, Value

Word = Annotated[Value, "a whole number, or an address"]
Number = Annotated[Value, "a number of the type that the code works on"]


class Code(NamedTuple):
    """A function in machine code."""

    address: int
    engine: Any
    """Owner of the code's memory, which keeps it alive."""


P = ParamSpec("P")
R = TypeVar("R")
_TURN = RLock()


def once(make: Callable[P, R]) -> Callable[P, R]:
    """Cache a function's result per arguments, computed by one thread at a time: code that other
    code calls must not be generated twice.
    """
    kept = cache(make)

    @wraps(make)
    def alone(*arguments: P.args, **named: P.kwargs) -> R:
        with _TURN:
            return kept(*arguments, **named)  # type: ignore[arg-type]

    return alone


def routine(write: Callable[..., None]) -> Callable[..., None]:
    """Turn `write`, which emits code, into a function that other emitted code calls instead of
    inlining it.

    `write` takes an emitter and then its parameters, each annotated as `Matrix`, `Word` or
    `Number`.
    """
    kinds = tuple(
        kind
        for name, kind in get_type_hints(write, include_extras=True).items()
        if name not in ("emit", "return")
    )

    def call(emit: Emitter, *given: Value | Matrix) -> None:
        flat = [part.ir for value in given for part in (value if isinstance(value, Matrix) else [value])]
        code = emit.b.inttoptr(
            ir.Constant(WORD, _translated(write, kinds, emit.bytes).address),
            _signature(kinds, emit.bytes).as_pointer(),
        )
        emit.b.call(code, flat)

    return call


@once
def _translated(write: Callable[..., None], kinds: tuple[Any, ...], size: int) -> Code:
    """Return the code for numbers of `size` bytes."""

    def body(emit: Emitter, *given: Value) -> None:
        flat = iter(given)
        write(emit, *(Matrix(next(flat), next(flat)) if kind is Matrix else next(flat) for kind in kinds))

    return translate(body, _signature(kinds, size), size)


def _signature(kinds: tuple[Any, ...], size: int) -> Any:
    number = ir.FloatType() if size == 4 else ir.DoubleType()
    flat = [
        part
        for kind in kinds
        for part in ([WORD, WORD] if kind is Matrix else [number if kind is Number else WORD])
    ]
    return ir.FunctionType(ir.VoidType(), flat)


def translate(write: Callable[..., None], signature: Any, size: int) -> Code:
    """Compile the code that `write` emits, given an emitter for numbers of `size` bytes and the
    arguments.
    """
    module = ir.Module()
    function = ir.Function(module, signature, "code")
    builder = ir.IRBuilder(function.append_basic_block())
    write(Emitter(builder, size), *(Value(builder, argument) for argument in function.args))
    builder.ret_void()
    engine = _optimised(str(module))
    return Code(engine.get_function_address("code"), engine)


def _optimised(code: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    host = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    module = llvm.parse_assembly(code)
    passes = llvm.create_pass_builder(host, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, host)
    engine.finalize_object()
    return engine
