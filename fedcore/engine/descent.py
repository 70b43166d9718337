"""What the rows of a stack descend along in a local step, given their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fedcore.engine.affine import adds, factors, offsets, pull
from fedcore.engine.assignment import select
from fedcore.engine.rows import Rows, Stretch

Number = float | Tensor
"""One for all rows, or a column [R, 1] of theirs."""


class Descent(Protocol):
    """The recursion of the local solver over the rows of a stack. Changes in place."""

    def cut(self, active: int) -> None:
        """Go on with the first rows only."""

    def direction(self, grad: Tensor, y: Tensor) -> Tensor:
        """What the rows at `y` [R, D] descend along; `grad` [R, D] may be overwritten."""
        ...


def descent(rows: Rows, x: Tensor) -> Descent:
    """That of the jobs the rows are of, each at x [R, D] before its first step; rules of free form must be a single job's."""
    return Affine(rows, x) if pull(rows.jobs[0].algorithm.rule) is not None else Asked(rows)


class Affine:
    """v <- momentum v + g + shrink y + pull (y - x) + offset; rows may differ in every number, and in their rules."""

    def __init__(self, rows: Rows, x: Tensor) -> None:
        jobs = rows.jobs
        known = [factors(job.algorithm, 0.0) for job in jobs]
        self._pull, self._shrink, self._momentum = (_number(rows, numbers, x) for numbers in zip(*known, strict=True))
        self._x, self._offset = x, _offset(rows)
        self._velocity: Tensor | None = None

    def cut(self, active: int) -> None:
        self._x = self._x[:active]
        self._offset, self._velocity = (part if part is None else part[:active] for part in (self._offset, self._velocity))
        self._pull, self._shrink, self._momentum = (
            part[:active] if isinstance(part, Tensor) else part for part in (self._pull, self._shrink, self._momentum)
        )

    def direction(self, grad: Tensor, y: Tensor) -> Tensor:
        if self._shrink is not None:
            grad = _add(grad, self._shrink, y)
        if self._pull is not None:
            grad = _add(grad, self._pull, y - self._x)
        if self._offset is not None:
            grad = grad.add_(self._offset)
        if self._momentum is None:
            return grad
        self._velocity = grad if self._velocity is None else self._velocity.mul_(self._momentum).add_(grad)
        return self._velocity


class Asked:
    """A single job's, whose rule may have any form: it is asked in every step."""

    def __init__(self, rows: Rows) -> None:
        (job,) = rows.jobs
        self._algorithm = job.algorithm
        self._velocity: Tensor | None = None
        self._local = select(job.assignment.local, torch.from_numpy(rows.place).to(job.assignment.local.x.device))

    def cut(self, active: int) -> None:
        self._local, self._velocity = select(self._local, slice(active)), None if self._velocity is None else self._velocity[:active]

    def direction(self, grad: Tensor, y: Tensor) -> Tensor:
        direction, self._velocity = self._algorithm.solver.direction(self._algorithm.rule, grad, y, self._velocity, self._local)
        return direction


def step_sizes(rows: Rows, stretch: Stretch, like: Tensor) -> Sequence[Number]:
    """What the rows of a stretch multiply their directions by, for each of its steps."""
    table = np.empty((stretch.active, stretch.stop - stretch.start))
    for owner, job in enumerate(rows.jobs):
        sizes, pace = job.assignment.sizes, job.algorithm.rule.pace(cast("Any", job.assignment.steps[:, None]))
        mine = rows.owner[: stretch.active] == owner
        paces = np.broadcast_to(np.asarray(pace, float), (len(job.assignment.steps), 1))
        table[mine] = sizes.first_of(stretch.stop)[stretch.steps] * paces[rows.place[: stretch.active][mine]]
    if (table == table[:1]).all():
        return [float(size) for size in table[0]]
    return torch.from_numpy(table.T[:, :, None].copy()).to(like).unbind(0)


def _number(rows: Rows, numbers: Sequence[float], like: Tensor) -> Number | None:
    """What the rows have of the jobs' `numbers`; None where all are zero."""
    if len(set(numbers)) == 1:
        return float(numbers[0]) or None
    return torch.from_numpy(np.array(numbers)[rows.owner][:, None]).to(like)


def _offset(rows: Rows) -> Tensor | None:
    if not any(adds(job.algorithm.rule) for job in rows.jobs):
        return None
    return rows.sort([offsets(job.algorithm.rule, job.assignment.local) for job in rows.jobs])


def _add(total: Tensor, factor: Number, vectors: Tensor) -> Tensor:
    return total.addcmul_(factor, vectors) if isinstance(factor, Tensor) else total.add_(vectors, alpha=factor)
