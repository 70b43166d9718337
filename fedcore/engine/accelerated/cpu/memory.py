"""Copy and combine rows of numbers."""

from collections.abc import Callable

from fedcore.engine.accelerated.cpu.routine import Number, Word, routine
from fedcore.engine.accelerated.cpu.simd import REGISTER_BYTES, Emitter, Matrix
from fedcore.engine.accelerated.cpu.values import Value, Variable

Load = Callable[[Value], Value]


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
def mix(emit: Emitter, keep: Number, target: Word, factor: Number, source: Word, count: Word) -> None:
    """target <- keep target + factor source, `count` numbers."""
    kept, times = emit.splat(keep), emit.splat(factor)
    _each(emit, count, target, lambda load: emit.fma(times, load(source), kept * load(target)))


@routine
def add_change(emit: Emitter, target: Word, factor: Number, left: Word, right: Word, count: Word) -> None:
    """target <- target + factor (left - right), `count` numbers."""
    times = emit.splat(factor)
    _each(emit, count, target, lambda load: emit.fma(times, load(left) - load(right), load(target)))


@routine
def put_past(emit: Emitter, target: Word, source: Word, count: Word) -> None:
    """target <- source, `count` numbers in whole registers, past the caches."""
    with emit.tiles(Variable(emit.word(0)), count, emit.lanes) as at:
        emit.store_past(emit.load(emit.after(source, at)), emit.after(target, at))


@routine
def gather(emit: Emitter, target: Matrix, source: Word, width: Word, chosen: Word, count: Word) -> None:
    """target[b] <- source[chosen[b]], a one and zeros, for b < count.

    `source` has rows of `width` numbers, and nothing between them.
    """
    with emit.loop(count) as b:
        row, place = emit.after(source, emit.read_word(chosen, b) * width), emit.row(target, b)
        cursor = Variable(emit.word(0))
        with emit.tiles(cursor, width, emit.lanes) as at:
            emit.store(emit.load(emit.after(row, at), aligned=False), emit.after(place, at))
        whole = cursor.value
        rest = width - whole
        last = emit.load_some(emit.after(row, whole), emit.first(rest))
        one = emit.first(rest + 1).select(emit.constant(1.0), last)
        emit.store(emit.first(rest).select(last, one), emit.after(place, whole))


@routine
def hand_over(emit: Emitter, target: Word, left: Word, right: Word, count: Word) -> None:
    """target <- left - right, `count` numbers, past the caches: what is written is more than they
    hold, and is not read soon.
    """

    def value(load: Load) -> Value:
        return load(left) - load(right)

    before = (-target & (REGISTER_BYTES - 1)) // emit.bytes
    before = (before < count).select(before, count)
    _some(emit, emit.word(0), before, target, value)
    cursor = Variable(before)
    with emit.tiles(cursor, count, emit.lanes) as at:
        emit.store_past(
            value(lambda address: emit.load(emit.after(address, at), aligned=False)), emit.after(target, at)
        )
    _some(emit, cursor.value, count, target, value)


def _each(emit: Emitter, count: Value, target: Value, value: Callable[[Load], Value]) -> None:
    """Store `value` of the loaded operands at `target`: register by register, the rest under a
    mask.
    """
    cursor = Variable(emit.word(0))
    with emit.tiles(cursor, count, emit.lanes) as at:
        made = value(lambda address: emit.load(emit.after(address, at), aligned=False))
        emit.store(made, emit.after(target, at), aligned=False)
    _some(emit, cursor.value, count, target, value)


def _some(emit: Emitter, first: Value, stop: Value, target: Value, value: Callable[[Load], Value]) -> None:
    """Do the same for less than a register, from number `first` to `stop`."""
    mask = emit.first(stop - first)
    emit.store_some(
        value(lambda address: emit.load_some(emit.after(address, first), mask)),
        emit.after(target, first),
        mask,
    )
