"""Forward and backward pass of one batch, generated for a network, and softmax over the outputs of
several samples at once.
"""

from itertools import accumulate as running
from math import factorial, log
from typing import Literal

from llvmlite import ir

from fedcore.engine.accelerated.cpu.dense import accumulate, propagate, rectify, scores
from fedcore.engine.accelerated.cpu.layout import Network, Task, parts
from fedcore.engine.accelerated.cpu.memory import fill, gather, mix
from fedcore.engine.accelerated.cpu.routine import Number, Word, routine
from fedcore.engine.accelerated.cpu.simd import Emitter, Matrix
from fedcore.engine.accelerated.cpu.values import Value, Variable
from fedcore.problems.dense import LossName


@routine
def softmax(emit: Emitter, factor: Number, outputs: Matrix, rows: Word, count: Word) -> None:
    """Column b < count of `outputs` becomes `factor` times its softmax over `rows` outputs.

    One that is no number stays visible.
    """
    with emit.loop(emit.registers(count)) as r:
        first = emit.after(outputs.address, r * emit.lanes)
        column = Matrix(first, outputs.stride)
        top, total = Variable(emit.load(first)), Variable(emit.constant(0.0))
        with emit.loop(rows) as o:
            value, highest = emit.load(emit.row(column, o)), top.value
            top.value = (value > highest).select(value, highest)
        highest = top.value
        with emit.loop(rows) as o:
            value = exponential(emit, emit.load(emit.row(column, o)) - highest)
            total.value = total.value + value
            emit.store(value, emit.row(column, o))
        scale = emit.splat(factor) / total.value
        with emit.loop(rows) as o:
            emit.store(scale * emit.load(emit.row(column, o)), emit.row(column, o))


def exponential(emit: Emitter, x: Value) -> Value:
    """e^x for x <= 0, to rounding.

    0 where it is below all normal numbers, and not-a-number of itself.

    x = k ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor series, as long as its terms count; 2^k
    by setting the exponent's bits.
    """
    single = emit.bytes == 4
    bits, bias, terms, lowest = (23, 127, 8, -87.0) if single else (52, 1023, 14, -708.0)
    # ln 2 in two parts, the first so short that its product with k is exact.
    coarse, fine = (
        (0.693359375, -2.12194440054690583e-4)
        if single
        else (0.693147180369123816490, 1.90821492927058770002e-10)
    )
    # Adding 1.5 2^bits rounds to a whole number, which the low bits then hold.
    shift = emit.constant(1.5 * 2.0**bits)
    held = (x < lowest).select(lowest, x)
    shifted = emit.fma(held, emit.constant(1 / log(2)), shift)
    k = shifted - shift
    r = emit.fma(k, emit.constant(-fine), emit.fma(k, emit.constant(-coarse), held))
    power = emit.constant(1 / factorial(terms - 1))
    for term in reversed(range(terms - 1)):
        power = emit.fma(power, r, emit.constant(1 / factorial(term)))
    exponent = shifted.cast(ir.VectorType(ir.IntType(8 * emit.bytes), emit.lanes)) + bias
    return (x < lowest).select(0.0, power * (exponent << bits).cast(emit.vector))


Pass = Literal[0, 1]
HERE: Pass = 0
THERE: Pass = 1
"""At y and at x: both see the same samples."""


class Passes:
    """Generates code that works in a thread's buffers."""

    def __init__(self, emit: Emitter, net: Network, loss: LossName, room: Value) -> None:
        """Divide the thread's buffer into `parts(net)`, followed by the sums."""
        self._emit, self._net, self._loss = emit, net, loss
        self.layers, self._last = range(len(net.strides)), len(net.strides) - 1
        self.one, self.zero = (Value(emit.b, ir.Constant(emit.number, number)) for number in (1.0, 0.0))
        sizes = parts(net)
        self._at = {
            name: emit.after(room, begin)
            for name, begin in zip(sizes, running(sizes.values(), initial=0), strict=False)
        }
        self.y, self.velocity, self.offset = (self._at[name, 0, 0] for name in ("y", "velocity", "offset"))
        self.sums = emit.after(room, sum(sizes.values()))

    def prepare(self) -> None:
        """Set the tables of rows, and the ones at the ends of those that go into later layers."""
        emit, net = self._emit, self._net
        for name, way, layer in [key for key in self._at if key[0] == "table"]:
            rows = Matrix(self._at["rows", way, layer], emit.word(net.strides[layer]))
            if layer:
                fill(emit, self.zero, rows.address, emit.word(net.reach * net.strides[layer]))
            with emit.loop(emit.word(net.reach)) as b:
                emit.write(emit.row(rows, b), self._at[name, way, layer] + b * 8)
                if layer:
                    emit.write(self.one, emit.after(emit.row(rows, b), net.widths[layer]))

    def lay_ready(self, task: Task) -> None:
        """Copy a client's samples that fit and are used more than once."""
        emit, net = self._emit, self._net
        with emit.when(self._ready(task)):
            gather(emit, self._samples(), task.features, emit.word(net.widths[0]), task.rows, task.held)

    def choose(self, task: Task, batch: Value, count: Value) -> None:
        """Select the samples of a batch, whose indices are at address `batch`."""
        emit, net, table, chosen = self._emit, self._net, self._at["table", 0, 0], self._at["chosen", 0, 0]
        with emit.loop(count) as b:
            emit.write(emit.read_word(task.rows, emit.read_word(batch, b)), chosen + b * 8)
        with emit.either(self._ready(task)) as (then, otherwise):
            with then, emit.loop(count) as b:
                emit.write(emit.row(self._samples(), emit.read_word(batch, b)), table + b * 8)
            with otherwise:
                gather(emit, self._samples(), task.features, emit.word(net.widths[0]), chosen, count)
                with emit.loop(count) as b:
                    emit.write(emit.row(self._samples(), b), table + b * 8)

    def _samples(self) -> Matrix:
        return Matrix(self._at["rows", 0, 0], self._emit.word(self._net.strides[0]))

    def _ready(self, task: Task) -> Value:
        return (task.held <= self._net.ready) & (task.held < task.steps * task.width)

    def differentiate(self, task: Task, model: Value, way: Pass, count: Value, factor: Value) -> None:
        """Replace the outputs of each layer by its errors: the derivative of `factor` times the
        batch's loss with respect to them.
        """
        emit, outputs = self._emit, [self._outputs(way, layer) for layer in self.layers]
        for layer in self.layers:
            scores(
                emit,
                self.weights(model, layer),
                self._table(way, layer),
                outputs[layer],
                self.outputs_of(layer),
                count,
            )
            if layer < self._last:
                rows = Matrix(self._at["rows", way, layer + 1], emit.word(self._net.strides[layer + 1]))
                rectify(emit, outputs[layer], rows, self.outputs_of(layer), count)
        self._compare(task, outputs[self._last], count, emit.rounded(factor))
        for layer in reversed(self.layers[1:]):
            below = emit.word(self._net.widths[layer])
            propagate(
                emit,
                self.weights(model, layer),
                outputs[layer],
                outputs[layer - 1],
                self.outputs_of(layer),
                below,
                count,
            )

    def _compare(self, task: Task, outputs: Matrix, count: Value, factor: Value) -> None:
        """Scores to errors: prediction less target, times `factor`."""
        emit, rows = self._emit, self.outputs_of(self._last)
        if self._loss == "cross_entropy":
            softmax(emit, factor, outputs, rows, count)
        else:
            with emit.loop(rows) as o:
                mix(emit, factor, emit.row(outputs, o), self.zero, emit.row(outputs, o), count)
        with emit.loop(count) as b:
            sample = emit.read_word(self._at["chosen", 0, 0], b)
            if self._loss == "squared_error_of_reals":
                place, target = (
                    emit.after(outputs.address, b),
                    factor * emit.read(emit.after(task.labels, sample)),
                )
            else:
                place, target = emit.after(emit.row(outputs, emit.read_word(task.labels, sample)), b), factor
            emit.write(emit.read(place) - target, place)

    def descend(self, task: Task, target: Value, keep: Value, source: Value, count: Value) -> None:
        """target <- keep source + the gradient given by the errors."""
        emit = self._emit
        for layer in self.layers:
            into, begin, rows = (
                self.weights(target, layer),
                self.weights(source, layer).address,
                self.outputs_of(layer),
            )
            accumulate(
                emit, into, keep, begin, self._table(HERE, layer), self._outputs(HERE, layer), rows, count
            )
            with emit.when(task.compares > 0):
                accumulate(
                    emit,
                    into,
                    self.one,
                    into.address,
                    self._table(THERE, layer),
                    self._outputs(THERE, layer),
                    rows,
                    count,
                )

    def weights(self, model: Value, layer: int) -> Matrix:
        """A layer's rows in a padded model."""
        return Matrix(
            self._emit.after(model, self._net.starts[layer]), self._emit.word(self._net.strides[layer])
        )

    def outputs_of(self, layer: int) -> Value:
        """Return the number of outputs of a layer."""
        return self._emit.word(self._net.widths[layer + 1])

    def _outputs(self, way: Pass, layer: int) -> Matrix:
        """A layer's outputs, outputs by samples: first scores, then activations, then errors."""
        return Matrix(self._at["outputs", way, layer], self._emit.word(self._net.reach))

    def _table(self, way: Pass, layer: int) -> Value:
        """The table of the rows that enter a layer."""
        return self._at["table", way if layer else HERE, layer]
