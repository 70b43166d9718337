"""Vectors as wide as this machine's registers, the building blocks of the inner loops.

A compiler that has to vectorise scalar loops keeps no block of sums in registers, so the loops that
take all the time are written as vector code. Memory is given by address, a whole number, and
counted in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from platform import machine
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from fedcore.engine.accelerated.cpu.values import DOUBLE, WORD, ControlFlow, Value, constant

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
        """In each group of 2 `half` lanes, the halves of `first` added up, then those of
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
        """As many vectors as there are lanes, lanes and vectors exchanged."""
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
