"""Copies and combinations of rows, and forward and backward pass of a dense layer, in blocks that
stay in registers.

The weights are rows [m, n + 1], one output's weights and its bias each. The inputs are rows
[B, n + 1] that end in a one, found through a table of their addresses [B]. All are padded to whole
registers, the inputs by zeros. Outputs are laid out as outputs by samples, [m, B]: a register holds
one output of several samples.
"""

from collections.abc import Callable

from fedcore.engine.accelerated.cpu.routine import Number, Word, routine
from fedcore.engine.accelerated.cpu.simd import (
    MANY_REGISTERS,
    REGISTER_BYTES,
    Emitter,
    Matrix,
    Value,
    Variable,
)

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


_OUTPUTS = (5, 2, 1) if MANY_REGISTERS else (2, 1)
"""How many outputs a block has, in descending order, until none are left."""
_SAMPLES = (5, 4)
_REGISTERS = (4, 1)
"""Along the inputs."""
_INPUTS = (8, 1) if MANY_REGISTERS else (4, 1)


@routine
def scores(emit: Emitter, weights: Matrix, inputs: Word, outputs: Matrix, rows: Word, count: Word) -> None:
    """outputs[o, b] <- sum_j weights[o, j] inputs[b, j] for o < rows and b < count.

    Entries of `outputs` beyond these are overwritten.
    """
    output, stops = Variable(emit.word(0)), _split(count)
    for high in _OUTPUTS:
        with emit.tiles(output, rows, high) as o:
            sample = Variable(emit.word(0))
            for wide, stop in zip(_SAMPLES, stops, strict=True):
                with emit.tiles(sample, stop, wide) as b:
                    seen = [emit.read_word(inputs, b + k) for k in range(wide)]
                    sums = _products(emit, emit.rows(weights, o, high), seen, weights.stride // emit.lanes)
                    _store_sums(emit, sums, [emit.after(row, b) for row in emit.rows(outputs, o, high)])


def _split(count: Value) -> tuple[Value, Value]:
    """Return where to end blocks of five samples so that only whole blocks of four remain, if there
    is such a split, and where those end.
    """
    fives = (count & 3) * 5
    fives = (fives <= count).select(fives, fives * 0)
    return fives, fives + ((count - fives + 3) & -4)


def _products(emit: Emitter, weights: list[Value], inputs: list[Value], length: Value) -> list[list[Value]]:
    """Sum the products of each pair of rows, register by register."""
    sums = [[Variable(emit.constant(0.0)) for _ in inputs] for _ in weights]
    with emit.loop(length) as register:
        held = [emit.load(emit.after(row, register * emit.lanes)) for row in weights]
        for q, row in enumerate(inputs):
            seen = emit.load(emit.after(row, register * emit.lanes))
            for p, weight in enumerate(held):
                sums[p][q].value = emit.fma(weight, seen, sums[p][q].value)
    return [[total.value for total in row] for row in sums]


def _store_sums(emit: Emitter, sums: list[list[Value]], targets: list[Value]) -> None:
    """Add up the lanes of each vector, for as many rows at a time as a register has lanes.

    Entries beyond are overwritten.
    """
    wide = len(sums[0])
    together = max(1, emit.lanes // wide)
    for first in range(0, len(sums), together):
        flat = [vector for row in sums[first : first + together] for vector in row]
        for k in range(0, len(flat), emit.lanes):
            held = emit.sums(flat[k : k + emit.lanes])
            for row, target in enumerate(targets[first : first + together]):
                turned = [(lane + row * wide) % emit.lanes for lane in range(emit.lanes)]
                emit.store(emit.shuffle(held, held, turned), emit.after(target, k), aligned=False)


@routine
def accumulate(
    emit: Emitter,
    target: Matrix,
    keep: Number,
    source: Word,
    inputs: Word,
    errors: Matrix,
    rows: Word,
    count: Word,
) -> None:
    """target[o, j] <- keep source[o, j] + sum_b errors[o, b] inputs[b, j] for o < rows, over
    b < count; source has the layout of target.
    """
    factor, output = emit.splat(keep), Variable(emit.word(0))
    for high in _OUTPUTS:
        with emit.tiles(output, rows, high) as o:
            register = Variable(emit.word(0))
            for wide in _REGISTERS:
                with emit.tiles(register, target.stride // emit.lanes, wide) as r:
                    places = [
                        [emit.after(row, (r + k) * emit.lanes) for k in range(wide)]
                        for row in emit.rows(target, o, high)
                    ]
                    sums = [
                        [Variable(factor * emit.load(place - target.address + source)) for place in row]
                        for row in places
                    ]
                    with emit.loop(count) as b:
                        seen = [
                            emit.load(emit.after(emit.read_word(inputs, b), (r + k) * emit.lanes))
                            for k in range(wide)
                        ]
                        _add_products(
                            emit, sums, [emit.after(row, b) for row in emit.rows(errors, o, high)], seen
                        )
                    for row, targets in zip(sums, places, strict=True):
                        for total, place in zip(row, targets, strict=True):
                            emit.store(total.value, place)


def _add_products(
    emit: Emitter, sums: list[list[Variable]], errors: list[Value], inputs: list[Value]
) -> None:
    """Add the products of each number at the addresses `errors` and each vector of `inputs`."""
    for row, place in zip(sums, errors, strict=True):
        error = emit.splat(emit.read(place))
        for total, seen in zip(row, inputs, strict=True):
            total.value = emit.fma(error, seen, total.value)


@routine
def propagate(
    emit: Emitter, weights: Matrix, errors: Matrix, units: Matrix, rows: Word, below: Word, count: Word
) -> None:
    """units[j, b] <- sum_o weights[o, j] errors[o, b] where units[j, b] > 0, else 0.

    For j < below and b < count, over o < rows.

    Before, `units` are what the layer below put out, after ReLU; afterwards, the errors there.
    Not-a-number lets errors through.
    """
    first = Variable(emit.word(0))
    for high in _INPUTS:
        with emit.tiles(first, below, high) as j, emit.loop(emit.registers(count)) as r:
            sums = [[Variable(emit.constant(0.0))] for _ in range(high)]
            with emit.loop(rows) as o:
                error = emit.load(emit.after(emit.row(errors, o), r * emit.lanes))
                _add_products(
                    emit, sums, [emit.after(emit.row(weights, o), j + k) for k in range(high)], [error]
                )
            for (total,), row in zip(sums, emit.rows(units, j, high), strict=True):
                place = emit.after(row, r * emit.lanes)
                emit.store((emit.load(place) <= 0.0).select(0.0, total.value), place)


@routine
def rectify(emit: Emitter, units: Matrix, inputs: Matrix, rows: Word, count: Word) -> None:
    """units <- max(units, 0), and inputs[b, j] <- units[j, b] for j < rows and, in whole registers,
    b < count.
    """
    with emit.loop(emit.registers(rows)) as block, emit.loop(emit.registers(count)) as r:
        first, sample = block * emit.lanes, r * emit.lanes
        places = [emit.after(row, sample) for row in emit.rows(units, first, emit.lanes)]
        values = [(value <= 0.0).select(0.0, value) for value in map(emit.load, places)]
        for value, place in zip(values, places, strict=True):
            emit.store(value, place)
        real = emit.first(rows - first)
        for value, row in zip(emit.transposed(values), emit.rows(inputs, sample, emit.lanes), strict=True):
            emit.store_some(value, emit.after(row, first), real)
