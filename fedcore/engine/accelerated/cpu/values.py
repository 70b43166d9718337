"""Values and control flow of LLVM's intermediate representation, written like Python's numbers,
loops and conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
        """The same bits as a value of another type."""
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
