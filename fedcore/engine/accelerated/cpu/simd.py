"""Values and control flow of LLVM's intermediate representation, written like Python's numbers, loops
and conditions, and vectors as wide as this machine's registers.

A compiler that has to vectorise scalar loops keeps no block of sums in registers, so the loops that
take all the time are written as vector code. Memory is given by address, a whole number, and
counted in numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from platform import machine
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

WORD, DOUBLE = ir.IntType(64), ir.DoubleType()


class Value:
    """A number or a vector that is known when the code runs."""

    __slots__ = ("b", "ir")

    def __init__(self, builder: Any, value: Any) -> None:
        """Wrap a value made by `builder`."""
        self.b, self.ir = builder, value

    def __add__(self, other: Operand) -> Value:
        return self._with(other, "add", "fadd")

    def __sub__(self, other: Operand) -> Value:
        return self._with(other, "sub", "fsub")

    def __mul__(self, other: Operand) -> Value:
        return self._with(other, "mul", "fmul")

    def __floordiv__(self, other: Operand) -> Value:
        return self._with(other, "udiv", "")

    def __mod__(self, other: Operand) -> Value:
        return self._with(other, "urem", "")

    def __truediv__(self, other: Operand) -> Value:
        return self._with(other, "", "fdiv")

    def __and__(self, other: Operand) -> Value:
        return self._with(other, "and_", "")

    def __lshift__(self, other: Operand) -> Value:
        return self._with(other, "shl", "")

    def __neg__(self) -> Value:
        return Value(self.b, self.b.fneg(self.ir) if _real(self.ir.type) else self.b.neg(self.ir))

    def __lt__(self, other: Operand) -> Value:
        return self._compared("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compared("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compared(">", other)

    def equals(self, other: Operand) -> Value:
        """Compare for equality, elementwise."""
        return self._compared("==", other)

    def differs(self, other: Operand) -> Value:
        """Compare for inequality, elementwise; not-a-number differs from everything."""
        compare = self.b.fcmp_unordered if _real(self.ir.type) else self.b.icmp_signed
        return Value(self.b, compare("!=", self.ir, _operand(other, self.ir.type)))

    def select(self, chosen: Operand, other: Value) -> Value:
        """Return `chosen` where this condition holds, `other` elsewhere."""
        return Value(self.b, self.b.select(self.ir, _operand(chosen, other.ir.type), other.ir))

    def cast(self, kind: Any) -> Value:
        """Take the same bits as a value of another type."""
        return Value(self.b, self.b.bitcast(self.ir, kind))

    def _with(self, other: Operand, whole: str, real: str) -> Value:
        operation = getattr(self.b, real if _real(self.ir.type) else whole)
        return Value(self.b, operation(self.ir, _operand(other, self.ir.type)))

    def _compared(self, sign: str, other: Operand) -> Value:
        compare = self.b.fcmp_ordered if _real(self.ir.type) else self.b.icmp_signed
        return Value(self.b, compare(sign, self.ir, _operand(other, self.ir.type)))


Operand = Value | int | float


def constant(kind: Any, value: float) -> Any:
    """Return a constant of a type; for a vector type, in every lane."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _operand(value: Operand, kind: Any) -> Any:
    return value.ir if isinstance(value, Value) else constant(kind, value)


def _real(kind: Any) -> bool:
    return not isinstance(kind.element if isinstance(kind, ir.VectorType) else kind, ir.IntType)


class Variable:
    """A value that loops change; LLVM keeps it in a register."""

    def __init__(self, first: Value) -> None:
        """Begin with `first`."""
        self._b = first.b
        with self._b.goto_entry_block():
            self._place = self._b.alloca(first.ir.type)
        self.value = first

    @property
    def value(self) -> Value:
        """The current value."""
        return Value(self._b, self._b.load(self._place))

    @value.setter
    def value(self, value: Value) -> None:
        self._b.store(value.ir, self._place)


class ControlFlow:
    """Loops and conditions."""

    def __init__(self, builder: Any) -> None:
        """Write into the function of `builder`."""
        self.b = builder

    def word(self, value: int) -> Value:
        """A whole number."""
        return Value(self.b, constant(WORD, value))

    @contextmanager
    def during(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Loop while the condition holds; it is evaluated before each pass."""
        head, body, done = (self.b.append_basic_block(name) for name in ("head", "body", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(condition().ir, body, done)
        self.b.position_at_end(body)
        yield
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def tiles(self, cursor: Variable, stop: Value, size: int = 1) -> Iterator[Value]:
        """Loop from `cursor` in steps of `size` while a whole tile fits before `stop`."""
        with self.during(lambda: cursor.value + size <= stop):
            at = cursor.value
            yield at
            cursor.value = at + size

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """Loop from 0 to `count`."""
        with self.tiles(Variable(self.word(0)), count) as at:
            yield at

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block where the condition holds."""
        with self.b.if_then(condition.ir):
            yield

    @contextmanager
    def either(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        """Return two blocks: for where the condition holds, and elsewhere."""
        with self.b.if_else(condition.ir) as blocks:
            yield blocks


_FEATURES = llvm.get_host_cpu_features()
REGISTER_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16
MANY_REGISTERS = bool(_FEATURES.get("avx512f")) or machine() in ("aarch64", "arm64")
"""32 vector registers, not 16."""
_LANE = ir.IntType(32)


class Matrix(NamedTuple):
    """Rows of numbers in memory, each starting at a multiple of a register."""

    address: Value
    stride: Value
    """Numbers from one row to the next."""


class Emitter(ControlFlow):
    """Writes code on one type of number, and on vectors of it, into a function."""

    def __init__(self, builder: Any, size: int) -> None:
        """Emit code for numbers of `size` bytes, 4 or 8."""
        super().__init__(builder)
        self.bytes, self.number = size, ir.FloatType() if size == 4 else DOUBLE
        self.lanes = REGISTER_BYTES // size
        self.vector = ir.VectorType(self.number, self.lanes)
        self._undefined = Value(builder, ir.Constant(self.vector, ir.Undefined))

    def constant(self, value: float) -> Value:
        """`value` in every lane."""
        return Value(self.b, constant(self.vector, value))

    def splat(self, number: Value) -> Value:
        """`number` in every lane."""
        held = Value(self.b, self.b.insert_element(self._undefined.ir, number.ir, _LANE(0)))
        return self.shuffle(held, held, [0] * self.lanes)

    def shuffle(self, first: Value, second: Value, lanes: Sequence[int]) -> Value:
        """The given lanes of the two vectors one after the other."""
        return Value(
            self.b,
            self.b.shuffle_vector(
                first.ir, second.ir, ir.Constant(ir.VectorType(_LANE, len(lanes)), list(lanes))
            ),
        )

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a b + c, rounded once."""
        return Value(self.b, self._call("llvm.fma", self.vector, a.ir, b.ir, c.ir))

    def after(self, address: Value, numbers: Value | int) -> Value:
        """Return the address `count` numbers later."""
        return address + numbers * self.bytes

    def row(self, matrix: Matrix, row: Value) -> Value:
        """The address of a row."""
        return self.after(matrix.address, row * matrix.stride)

    def rows(self, matrix: Matrix, first: Value, count: int) -> list[Value]:
        """The addresses of consecutive rows."""
        return [self.row(matrix, first + k) for k in range(count)]

    def registers(self, count: Value) -> Value:
        """How many registers `count` numbers take."""
        return (count + (self.lanes - 1)) // self.lanes

    def load(self, address: Value, *, aligned: bool = True) -> Value:
        """The vector at `address`."""
        return Value(
            self.b,
            self.b.load(self._pointer(address, self.vector), align=REGISTER_BYTES if aligned else self.bytes),
        )

    def store(self, value: Value, address: Value, *, aligned: bool = True) -> None:
        """Put a vector at `address`."""
        self.b.store(
            value.ir, self._pointer(address, self.vector), align=REGISTER_BYTES if aligned else self.bytes
        )

    def store_past(self, value: Value, address: Value) -> None:
        """Store a vector without going through the caches; see `settle`."""
        stored = self.b.store(value.ir, self._pointer(address, self.vector), align=REGISTER_BYTES)
        stored.set_metadata("nontemporal", self.b.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))

    def settle(self) -> None:
        """Make stores that bypassed the caches visible to other threads."""
        self.b.fence("seq_cst")

    def read(self, address: Value, kind: Any = None) -> Value:
        """Load the number, or a value of another type, at `address`."""
        return Value(self.b, self.b.load(self._pointer(address, kind or self.number)))

    def read_word(self, address: Value, index: Value | int = 0) -> Value:
        """One of the whole numbers from `address` on."""
        return self.read(address + index * 8, WORD)

    def write(self, value: Value, address: Value) -> None:
        """Put a value of any kind at `address`."""
        self.b.store(value.ir, self._pointer(address, value.ir.type))

    def rounded(self, value: Value) -> Value:
        """A number in double precision as one of this type."""
        return Value(self.b, self.b.fptrunc(value.ir, self.number)) if self.bytes == 4 else value

    def real(self, count: Value) -> Value:
        """A whole number in double precision."""
        return Value(self.b, self.b.sitofp(count.ir, DOUBLE))

    def first(self, count: Value) -> Value:
        """The mask of the first `count` lanes, of all where they are fewer."""
        lanes = ir.VectorType(WORD, self.lanes)
        held = self.b.insert_element(ir.Constant(lanes, ir.Undefined), count.ir, _LANE(0))
        spread = self.b.shuffle_vector(
            held, held, ir.Constant(ir.VectorType(_LANE, self.lanes), [0] * self.lanes)
        )
        return Value(self.b, ir.Constant(lanes, list(range(self.lanes)))) < Value(self.b, spread)

    def load_some(self, address: Value, mask: Value) -> Value:
        """The numbers from `address` on where the mask says so, 0 elsewhere.

        Nothing else is touched.
        """
        operands = (
            self._pointer(address, self.vector),
            _LANE(self.bytes),
            mask.ir,
            constant(self.vector, 0.0),
        )
        return Value(self.b, self._call("llvm.masked.load", self.vector, *operands))

    def store_some(self, value: Value, address: Value, mask: Value) -> None:
        """Put the lanes of a vector there where the mask says so."""
        self._call(
            "llvm.masked.store",
            ir.VoidType(),
            value.ir,
            self._pointer(address, self.vector),
            _LANE(self.bytes),
            mask.ir,
        )

    def sums(self, vectors: Sequence[Value]) -> Value:
        """The sum over all lanes of each of at most as many vectors as there are lanes, one sum a
        lane.
        """
        left: list[Value | None] = [*vectors, *[None] * (self.lanes - len(vectors))]
        half = self.lanes // 2
        while half:
            left = [
                self._fold(first, second, half)
                for first, second in zip(left[:half], left[half:], strict=True)
            ]
            half //= 2
        assert left[0] is not None
        return left[0]

    def _fold(self, first: Value | None, second: Value | None, half: int) -> Value | None:
        """In each group of 2 `half` lanes, the halves of `first` added up, then the halves of
        `second`.
        """
        if first is None:
            return None
        second = second or self._undefined
        lower = [lane % (2 * half) < half for lane in range(self.lanes)]
        kept = [lane if low else self.lanes + lane for lane, low in enumerate(lower)]
        moved = [lane + half if low else self.lanes + lane - half for lane, low in enumerate(lower)]
        return self.shuffle(first, second, kept) + self.shuffle(first, second, moved)

    def transposed(self, vectors: list[Value]) -> list[Value]:
        """Exchange lanes and vectors; there are as many vectors as lanes."""
        half = self.lanes // 2
        while half:
            lower = [lane % (2 * half) < half for lane in range(self.lanes)]
            low = [lane if low else self.lanes + lane - half for lane, low in enumerate(lower)]
            high = [lane + half if low else self.lanes + lane for lane, low in enumerate(lower)]
            turned = list(vectors)
            for k in (k for k in range(self.lanes) if not k & half):
                pair = vectors[k], vectors[k + half]
                turned[k], turned[k + half] = self.shuffle(*pair, low), self.shuffle(*pair, high)
            vectors, half = turned, half // 2
        return vectors

    def _pointer(self, address: Value, kind: Any) -> Any:
        return self.b.inttoptr(address.ir, kind.as_pointer())

    def _call(self, name: str, result: Any, *operands: Any) -> Any:
        """One of LLVM's own functions, on vectors."""
        pointer = ".p0" if "masked" in name else ""
        name = f"{name}.v{self.lanes}f{8 * self.bytes}{pointer}"
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return self.b.call(
            self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name), operands
        )
