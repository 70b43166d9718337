"""Vector-code functions, compiled for this machine at their first call for a data type, and kept in the
process and on disk.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import RLock
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import llvmlite.binding as llvm
from llvmlite import ir

from fedcore.engine.accelerated.cpu.simd import WORD, Emitter, Matrix, Value

Word = Annotated[Value, "a whole number, or an address"]
Number = Annotated[Value, "a number of the type that the code works on"]


DIGEST_BYTES = 32
"""Length of the SHA-256 digest before the object code in a file."""


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
        # By name: with an address, the code would be another one in each process.
        name = f"{write.__module__}.{write.__qualname__}.{emit.bytes}"
        llvm.add_symbol(name, _translated(write, kinds, emit.bytes).address)
        module = emit.b.module
        code = module.globals.get(name) or ir.Function(module, _signature(kinds, emit.bytes), name)
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
    made_from = (llvm.llvm_version_info, host.triple, llvm.get_host_cpu_name(), features, code)
    kept = _folder() / sha256(repr(made_from).encode()).hexdigest()
    compiled = _read(kept)
    module = llvm.parse_assembly(code)
    if compiled is None:
        passes = llvm.create_pass_builder(host, llvm.create_pipeline_tuning_options(speed_level=2))
        passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, host)
    engine.set_object_cache(lambda _, made: _write(kept, made), lambda _: compiled)
    engine.finalize_object()
    return engine


def _folder() -> Path:
    """Folder of object code, in the user's folder for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedq" / "machine-code"


def _read(path: Path) -> bytes | None:
    """Object code kept in a file; None if there is none, or it is damaged: LLVM would end the process."""
    with suppress(OSError):
        content = path.read_bytes()
        digest, compiled = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if sha256(compiled).digest() == digest:
            return compiled
    return None


def _write(path: Path, compiled: bytes) -> None:
    """Keep object code, where the folder can be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(sha256(compiled).digest() + compiled)
        Path(file.name).replace(path)
