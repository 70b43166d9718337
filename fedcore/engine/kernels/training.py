"""A client's whole local training without leaving machine code, written for one network.

Sums may be taken in any order, but not-a-number and infinity are kept, since a run that diverges must show. Everything is found by
its address; whoever calls keeps it alive. No result depends on the thread, nor on what the thread did before.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from llvmlite import ir

from fedcore.engine.kernels.dense import accumulate, propagate, rectify, scores
from fedcore.engine.kernels.layout import Network
from fedcore.engine.kernels.loss import softmax
from fedcore.engine.kernels.memory import copy, fill, gather, mix, subtract
from fedcore.engine.kernels.simd import Emitter, Matrix
from fedcore.engine.kernels.values import DOUBLE, WORD, Value, Variable
from fedcore.problems.dense import LossName

TASK = np.dtype(
    [
        ("features", np.int64),  # [n, d]
        ("labels", np.int64),  # [n] whole, or real numbers where the loss is so
        ("rows", np.int64),  # [n_i] which samples the client holds
        ("batches", np.int64),  # [kinds, width] indices into rows; -1 is padding, at the end
        ("kinds", np.int64),  # as many as steps; or one, seen in all of them
        ("width", np.int64),
        ("steps", np.int64),
        ("sizes", np.int64),  # [steps] step sizes, in double precision
        ("x", np.int64),  # the broadcast model, padded
        ("offset", np.int64),  # [D]; 0 where there is none
        ("out", np.int64),  # [D] where the result goes
        ("delta", np.int64),  # whether that is y - x, or else y
        ("compares", np.int64),  # whether g is less the gradient at x over the same batch
        ("pace", np.float64),  # what multiplies the step sizes
        ("scale", np.float64),  # what multiplies the loss
        ("pull", np.float64),
        ("shrink", np.float64),
        ("momentum", np.float64),
    ]
)
"""A client's training: v <- momentum v + g + shrink y + pull (y - x) + offset; y <- y - size v, from y = x on."""

Pass = Literal[0, 1]
HERE: Pass = 0
THERE: Pass = 1
"""At y and at x."""


class _Task:
    """The fields of a task at some address."""

    def __init__(self, emit: Emitter, address: Value) -> None:
        self._emit, self._address = emit, address

    def __getattr__(self, field: str) -> Value:
        assert TASK.fields is not None
        kind, offset = TASK.fields[field][:2]
        return self._emit.read(self._address + offset, DOUBLE if kind == np.float64 else WORD)


class Trainer:
    """Writes the code by which a thread takes tasks and carries them out."""

    def __init__(self, emit: Emitter, net: Network, loss: LossName, room: Value) -> None:
        """Divide the thread's room, of `room_for(net)` numbers."""
        self._emit, self._net, self._loss = emit, net, loss
        self._layers, self._last, self._size = range(len(net.strides)), len(net.strides) - 1, emit.word(net.starts[-1])
        self._one, self._zero = (Value(emit.b, ir.Constant(emit.number, number)) for number in (1.0, 0.0))
        parts = _parts(net)
        places = [emit.after(room, sum(parts[:k])) for k in range(len(parts))]
        self._y, self._velocity, self._offset, *rest, self._chosen = places
        layers = len(self._layers)
        # What goes into each layer, rows of samples that end in a one; both passes see the same samples.
        inputs = [rest[:layers], [rest[0], *rest[layers : 2 * layers - 1]]]
        self._inputs = [[Matrix(at, emit.word(stride)) for at, stride in zip(row, net.strides, strict=True)] for row in inputs]
        # What comes out, outputs by samples: first scores, then activations, then errors.
        outputs = rest[2 * layers - 1 : 3 * layers - 1], rest[3 * layers - 1 :]
        self._outputs = [[Matrix(at, emit.word(net.reach)) for at in row] for row in outputs]

    def work(self, counter: Value, tasks: Value, count: Value) -> None:
        """Take tasks, by the whole number at address `counter`, until none of `count` are left."""
        emit = self._emit
        self._set_ones()
        task = Variable(self._take(counter))
        with emit.during(lambda: task.value < count):
            self._train(_Task(emit, tasks + task.value * TASK.itemsize))
            task.value = self._take(counter)

    def _take(self, counter: Value) -> Value:
        """The number at `counter`, which goes up by one; no two threads get the same."""
        b = self._emit.b
        return Value(b, b.atomic_rmw("add", b.inttoptr(counter.ir, WORD.as_pointer()), ir.Constant(WORD, 1), "monotonic"))

    def _set_ones(self) -> None:
        emit, net = self._emit, self._net
        for layer in self._layers:
            for inputs in {id(row[layer].address): row[layer] for row in self._inputs}.values():
                fill(emit, self._zero, inputs.address, emit.word(net.reach * net.strides[layer]))
                with emit.loop(emit.word(net.reach)) as sample:
                    emit.write(self._one, emit.after(emit.row(inputs, sample), net.widths[layer]))

    def _train(self, task: _Task) -> None:
        """All local steps of one client."""
        emit, net = self._emit, self._net
        copy(emit, self._y, task.x, self._size)
        with emit.when(task.offset > 0):
            self._spread(task.offset)
        direct = (task.momentum.equals(0.0)) & (task.width <= net.samples)
        with emit.when(direct.equals(0)):
            fill(emit, self._zero, self._velocity, self._size)
        with emit.loop(task.steps) as k:
            step = emit.read(task.sizes + k * 8, DOUBLE) * task.pace
            batch = task.batches + k % task.kinds * task.width * 8
            with emit.either(direct) as (then, otherwise):
                with then:
                    self._step(task, step, batch, k < task.kinds)
                with otherwise:
                    self._long_step(task, step, batch)
        self._hand_in(task)

    def _step(self, task: _Task, step: Value, batch: Value, fresh: Value) -> None:
        """Without a velocity: y <- keep y + step pull x - step offset - step g, the gradient added as it comes."""
        emit, size = self._emit, self._size
        count = self._real(batch, task.width)
        with emit.when(fresh):
            self._gather(task, batch, count)
        factor = step * task.scale / emit.real(count)
        self._differentiate(task, self._y, HERE, count, -factor)
        with emit.when(task.compares > 0):
            self._differentiate(task, task.x, THERE, count, factor)
        keep = Variable(emit.rounded(-(step * (task.shrink + task.pull)) + 1.0))
        with emit.when(task.pull.differs(0.0)):
            mix(emit, keep.value, self._y, emit.rounded(step * task.pull), task.x, size)
            keep.value = self._one
        with emit.when(task.offset > 0):
            mix(emit, keep.value, self._y, emit.rounded(-step), self._offset, size)
            keep.value = self._one
        self._descend(task, self._y, keep.value, count)

    def _long_step(self, task: _Task, step: Value, batch: Value) -> None:
        """v <- momentum v + (shrink + pull) y - pull x + offset + g, the gradient added part by part; y <- y - step v."""
        emit, size, velocity, room = self._emit, self._size, self._velocity, self._net.samples
        mix(emit, emit.rounded(task.momentum), velocity, emit.rounded(task.shrink + task.pull), self._y, size)
        with emit.when(task.pull.differs(0.0)):
            mix(emit, self._one, velocity, emit.rounded(-task.pull), task.x, size)
        with emit.when(task.offset > 0):
            mix(emit, self._one, velocity, self._one, self._offset, size)
        factor, begin = task.scale / emit.real(self._real(batch, task.width)), Variable(emit.word(0))
        with emit.during(lambda: begin.value < task.width):
            part, rest = batch + begin.value * 8, task.width - begin.value
            count = self._real(part, (rest < room).select(rest, emit.word(room)))
            self._gather(task, part, count)
            self._differentiate(task, self._y, HERE, count, factor)
            with emit.when(task.compares > 0):
                self._differentiate(task, task.x, THERE, count, -factor)
            self._descend(task, velocity, self._one, count)
            begin.value = begin.value + room
        mix(emit, self._one, self._y, emit.rounded(-step), velocity, size)

    def _real(self, batch: Value, width: Value) -> Value:
        """How many of a batch are no padding."""
        emit, count = self._emit, Variable(self._emit.word(0))
        with emit.loop(width) as b:
            count.value = count.value + (emit.read_word(batch, b) < 0).select(0, emit.word(1))
        return count.value

    def _gather(self, task: _Task, batch: Value, count: Value) -> None:
        """Put the samples of a batch into the rows that go into the first layer."""
        emit = self._emit
        with emit.loop(count) as b:
            emit.write(emit.read_word(task.rows, emit.read_word(batch, b)), self._chosen + b * 8)
        gather(emit, self._inputs[HERE][0], task.features, emit.word(self._net.widths[0]), self._chosen, count)

    def _differentiate(self, task: _Task, model: Value, way: Pass, count: Value, factor: Value) -> None:
        """Leave in the outputs the errors of each layer: the derivative of `factor` times the batch's loss by what it puts out."""
        emit, inputs, outputs = self._emit, self._inputs[way], self._outputs[way]
        for layer in self._layers:
            scores(emit, self._weights(model, layer), inputs[layer], outputs[layer], self._rows(layer), count)
            if layer < self._last:
                rectify(emit, outputs[layer], inputs[layer + 1], self._rows(layer), count)
        self._compare(task, outputs[self._last], count, emit.rounded(factor))
        for layer in reversed(self._layers[1:]):
            below = emit.word(self._net.widths[layer])
            propagate(emit, self._weights(model, layer), outputs[layer], outputs[layer - 1], self._rows(layer), below, count)

    def _compare(self, task: _Task, outputs: Matrix, count: Value, factor: Value) -> None:
        """Scores to errors: prediction less target, times `factor`."""
        emit, rows = self._emit, self._rows(self._last)
        if self._loss == "cross_entropy":
            softmax(emit, factor, outputs, rows, count)
        else:
            with emit.loop(rows) as o:
                mix(emit, factor, emit.row(outputs, o), self._zero, emit.row(outputs, o), count)
        with emit.loop(count) as b:
            sample = emit.read_word(self._chosen, b)
            if self._loss == "squared_error_of_reals":
                place, target = emit.after(outputs.address, b), factor * emit.read(emit.after(task.labels, sample))
            else:
                place, target = emit.after(emit.row(outputs, emit.read_word(task.labels, sample)), b), factor
            emit.write(emit.read(place) - target, place)

    def _descend(self, task: _Task, target: Value, keep: Value, count: Value) -> None:
        """target <- keep target + what the errors make the gradient."""
        emit = self._emit
        for layer in self._layers:
            weights, rows = self._weights(target, layer), self._rows(layer)
            accumulate(emit, keep, weights, self._inputs[HERE][layer], self._outputs[HERE][layer], rows, count)
            with emit.when(task.compares > 0):
                accumulate(emit, self._one, weights, self._inputs[THERE][layer], self._outputs[THERE][layer], rows, count)

    def _spread(self, theta: Value) -> None:
        """The offset `theta` [D] in padded rows."""
        emit = self._emit
        fill(emit, self._zero, self._offset, self._size)
        for rows, width, padded, plain in self._places(self._offset, theta):
            with emit.loop(rows) as row:
                copy(emit, emit.row(padded, row), emit.row(plain, row), width)

    def _hand_in(self, task: _Task) -> None:
        """Write y, or y - x, without the padding."""
        emit = self._emit
        pairs = zip(self._places(self._y, task.out), self._places(task.x, task.out), strict=True)
        for (rows, width, y, out), (_, _, x, _) in pairs:
            with emit.loop(rows) as row, emit.either(task.delta > 0) as (then, otherwise):
                with then:
                    subtract(emit, emit.row(out, row), emit.row(y, row), emit.row(x, row), width)
                with otherwise:
                    copy(emit, emit.row(out, row), emit.row(y, row), width)

    def _places(self, padded: Value, plain: Value) -> list[tuple[Value, Value, Matrix, Matrix]]:
        """Of each layer how many rows it has and how long they are, and where they lie with padding and without."""
        emit, net, places, begin = self._emit, self._net, [], 0
        for layer in self._layers:
            width, rows = net.widths[layer] + 1, net.widths[layer + 1]
            close = Matrix(emit.after(plain, begin), emit.word(width))
            places.append((emit.word(rows), emit.word(width), self._weights(padded, layer), close))
            begin += rows * width
        return places

    def _weights(self, model: Value, layer: int) -> Matrix:
        return Matrix(self._emit.after(model, self._net.starts[layer]), self._emit.word(self._net.strides[layer]))

    def _rows(self, layer: int) -> Value:
        return self._emit.word(self._net.widths[layer + 1])


def room_for(net: Network) -> int:
    """How many numbers a thread works in."""
    return sum(_parts(net))


def _parts(net: Network) -> list[int]:
    """Numbers in y, velocity and offset, what goes into the layers, what comes out, all twice but the first, and which samples."""
    inputs = [net.reach * stride for stride in net.strides]
    outputs = [net.reach * net.whole(width) for width in net.widths[1:]]
    return [*[net.starts[-1]] * 3, *inputs, *inputs[1:], *outputs, *outputs, net.whole(net.samples * 8 // net.size)]
