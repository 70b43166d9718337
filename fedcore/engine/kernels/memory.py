"""Rows of numbers moved and mixed."""

from collections.abc import Callable

from fedcore.engine.kernels.routine import Number, Word, routine
from fedcore.engine.kernels.simd import Emitter, Matrix
from fedcore.engine.kernels.values import Value, Variable


@routine
def fill(emit: Emitter, value: Number, target: Word, count: Word) -> None:
    """target <- `count` times the value."""
    everywhere = emit.splat(value)
    _each(emit, count, target, lambda _: everywhere)


@routine
def copy(emit: Emitter, target: Word, source: Word, count: Word) -> None:
    """target <- source, `count` numbers."""
    _each(emit, count, target, lambda load: load(source))


@routine
def subtract(emit: Emitter, target: Word, left: Word, right: Word, count: Word) -> None:
    """target <- left - right, `count` numbers."""
    _each(emit, count, target, lambda load: load(left) - load(right))


@routine
def mix(emit: Emitter, keep: Number, target: Word, factor: Number, source: Word, count: Word) -> None:
    """target <- keep target + factor source, `count` numbers."""
    kept, times = emit.splat(keep), emit.splat(factor)
    _each(emit, count, target, lambda load: emit.fma(times, load(source), kept * load(target)))


@routine
def gather(emit: Emitter, target: Matrix, source: Word, width: Word, chosen: Word, count: Word) -> None:
    """target[b] <- source[chosen[b]] for b < count; the rows of `source` have `width` numbers, and nothing between them."""
    with emit.loop(count) as b:
        row = emit.after(source, emit.read_word(chosen, b) * width)
        _each(emit, width, emit.row(target, b), lambda load, row=row: load(row))  # type: ignore[misc]


def _each(emit: Emitter, count: Value, target: Value, value: Callable[[Callable[[Value], Value]], Value]) -> None:
    """Put at `target` what `value` makes of the loaded operands: register by register, and the rest under a mask."""
    cursor = Variable(emit.word(0))
    with emit.tiles(cursor, count, emit.lanes) as at:
        made = value(lambda address: emit.load(emit.after(address, at), aligned=False))
        emit.store(made, emit.after(target, at), aligned=False)
    rest = cursor.value
    some = emit.first(count - rest)
    made = value(lambda address: emit.load_some(emit.after(address, rest), some))
    emit.store_some(made, emit.after(target, rest), some)
