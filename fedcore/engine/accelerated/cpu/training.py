"""A client's whole local training in machine code, generated for one network.

Sums may be taken in any order, but not-a-number and infinity are kept, since a run that diverges
must show. All data are found by address; the caller keeps them alive. No result depends on the
thread, nor on its previous tasks.
"""

from __future__ import annotations

from llvmlite import ir

from fedcore.engine.accelerated.cpu.layout import TASK, Network, Task
from fedcore.engine.accelerated.cpu.memory import add_change, copy, fill, hand_over, mix, put_past
from fedcore.engine.accelerated.cpu.passes import HERE, THERE, Passes
from fedcore.engine.accelerated.cpu.simd import Emitter, Matrix
from fedcore.engine.accelerated.cpu.values import DOUBLE, WORD, Value, Variable
from fedcore.problems.dense import LossName


class Trainer:
    """Generates the code with which a thread takes tasks and trains them."""

    def __init__(self, emit: Emitter, net: Network, loss: LossName, room: Value) -> None:
        """Work in a buffer of `layout.parts(net)`."""
        self._emit, self._net, self._size = emit, net, emit.word(net.starts[-1])
        self._passes = Passes(emit, net, loss, room)

    def work(self, counter: Value, tasks: Value, starts: Value, count: Value) -> None:
        """Take groups of tasks, numbered by the whole number at address `counter`, until none of
        `count` remain.
        """
        emit = self._emit
        self._passes.prepare()
        group = Variable(self._take(counter))
        with emit.during(lambda: group.value < count):
            task = Variable(emit.read_word(starts, group.value))
            with emit.tiles(task, emit.read_word(starts, group.value + 1)) as number:
                self._train(Task(emit, tasks + number * TASK.itemsize))
            group.value = self._take(counter)
        emit.settle()

    def _take(self, counter: Value) -> Value:
        """Fetch and increment the number at `counter`; no two threads get the same."""
        b = self._emit.b
        return Value(
            b,
            b.atomic_rmw("add", b.inttoptr(counter.ir, WORD.as_pointer()), ir.Constant(WORD, 1), "monotonic"),
        )

    def _train(self, task: Task) -> None:
        """All local steps of one client."""
        emit, passes = self._emit, self._passes
        passes.lay_ready(task)
        direct = task.momentum.equals(0.0) & (task.width <= self._net.samples)
        # Where nothing else is added, the first step reads x and writes y.
        plain = direct & task.pull.equals(0.0) & task.offset.equals(0)
        model = Variable(plain.select(task.x, passes.y))
        with emit.when(plain.equals(0)):
            copy(emit, passes.y, task.x, self._size)
        with emit.when(task.offset.differs(0)):
            self._spread(task.offset)
        with emit.when(direct.equals(0)):
            fill(emit, passes.zero, passes.velocity, self._size)
        with emit.loop(task.steps) as k:
            step = emit.read(task.sizes + k * 8, DOUBLE) * task.pace
            batch = task.batches + k % task.kinds * task.width * 8
            with emit.either(direct) as (then, otherwise):
                with then:
                    self._step(task, model.value, step, batch, k < task.kinds)
                with otherwise:
                    self._long_step(task, step, batch)
            model.value = passes.y
        with emit.when(task.out.differs(0)):
            self._hand_in(task, model.value)
        self._sum_up(task, model.value)

    def _step(self, task: Task, model: Value, step: Value, batch: Value, fresh: Value) -> None:
        """Without a velocity: y <- keep y + step pull x - step offset - step g, the gradient added
        as it comes.
        """
        emit, passes, size = self._emit, self._passes, self._size
        count = self._real(batch, task.width)
        with emit.when(fresh):
            passes.choose(task, batch, count)
        factor = step * task.scale / emit.real(count)
        passes.differentiate(task, model, HERE, count, -factor)
        with emit.when(task.compares > 0):
            passes.differentiate(task, task.x, THERE, count, factor)
        keep = Variable(emit.rounded(-(step * (task.shrink + task.pull)) + 1.0))
        with emit.when(task.pull.differs(0.0)):
            mix(emit, keep.value, passes.y, emit.rounded(step * task.pull), task.x, size)
            keep.value = passes.one
        with emit.when(task.offset.differs(0)):
            mix(emit, keep.value, passes.y, emit.rounded(-step), passes.offset, size)
            keep.value = passes.one
        passes.descend(task, passes.y, keep.value, model, count)

    def _long_step(self, task: Task, step: Value, batch: Value) -> None:
        """v <- momentum v + (shrink + pull) y - pull x + offset + g, the gradient added part by
        part; y <- y - step v.
        """
        emit, passes, size, most = self._emit, self._passes, self._size, self._net.samples
        y, velocity, one = passes.y, passes.velocity, passes.one
        mix(emit, emit.rounded(task.momentum), velocity, emit.rounded(task.shrink + task.pull), y, size)
        with emit.when(task.pull.differs(0.0)):
            mix(emit, one, velocity, emit.rounded(-task.pull), task.x, size)
        with emit.when(task.offset.differs(0)):
            mix(emit, one, velocity, one, passes.offset, size)
        factor, begin = task.scale / emit.real(self._real(batch, task.width)), Variable(emit.word(0))
        with emit.during(lambda: begin.value < task.width):
            part, rest = batch + begin.value * 8, task.width - begin.value
            count = self._real(part, (rest < most).select(rest, emit.word(most)))
            passes.choose(task, part, count)
            passes.differentiate(task, y, HERE, count, factor)
            with emit.when(task.compares > 0):
                passes.differentiate(task, task.x, THERE, count, -factor)
            passes.descend(task, velocity, one, velocity, count)
            begin.value = begin.value + most
        mix(emit, one, y, emit.rounded(-step), velocity, size)

    def _real(self, batch: Value, width: Value) -> Value:
        """Return the number of samples in a batch that are not padding."""
        emit, count = self._emit, Variable(self._emit.word(0))
        with emit.loop(width) as b:
            count.value = count.value + (emit.read_word(batch, b) < 0).select(0, emit.word(1))
        return count.value

    def _spread(self, theta: Value) -> None:
        """Copy the offset `theta` [D] into padded rows."""
        emit, offset = self._emit, self._passes.offset
        fill(emit, self._passes.zero, offset, self._size)
        for rows, width, padded, plain in self._places(offset, theta):
            with emit.loop(rows) as row:
                copy(emit, emit.row(padded, row), emit.row(plain, row), width)

    def _hand_in(self, task: Task, model: Value) -> None:
        """Write the model, or its difference from x, without the padding."""
        emit = self._emit
        pairs = zip(self._places(model, task.out), self._places(task.x, task.out), strict=True)
        for (rows, width, y, out), (_, _, x, _) in pairs:
            with emit.loop(rows) as row, emit.either(task.delta > 0) as (then, otherwise):
                with then:
                    hand_over(emit, emit.row(out, row), emit.row(y, row), emit.row(x, row), width)
                with otherwise:
                    copy(emit, emit.row(out, row), emit.row(y, row), width)

    def _sum_up(self, task: Task, model: Value) -> None:
        """Add the model's difference from x to this thread's sums while it is in the cache."""
        emit, sums = self._emit, self._passes.sums
        with emit.when(task.fresh > 0):
            fill(emit, self._passes.zero, sums, self._size * task.summed)
        with emit.loop(task.summed) as row:
            factor = emit.read(emit.after(task.counts, row))
            add_change(emit, emit.after(sums, self._size * row), factor, model, task.x, self._size)
        with emit.when(task.sums.differs(0)):
            put_past(emit, task.sums, sums, self._size * task.summed)

    def _places(self, padded: Value, plain: Value) -> list[tuple[Value, Value, Matrix, Matrix]]:
        """Yield for each layer the number and length of its rows, and their place with and without
        padding.
        """
        emit, net, places, begin = self._emit, self._net, [], 0
        for layer in self._passes.layers:
            width, rows = net.widths[layer] + 1, net.widths[layer + 1]
            close = Matrix(emit.after(plain, begin), emit.word(width))
            places.append((emit.word(rows), emit.word(width), self._passes.weights(padded, layer), close))
            begin += rows * width
        return places
