"""`local`: the solver each client runs on its own data."""

from dataclasses import replace
from math import nan
from typing import Self

from pydantic import model_validator

from fedcore.block import Block, PositiveRate
from fedcore.core import Solver
from fedcore.solvers.optimisers import AnyOptimiser, Sgd
from fedcore.solvers.schedules import AnyLrSchedule, ConstantLr, StepSizes
from fedcore.systems.work import BatchSize, Count


class LocalSolver(Block):
    """Local training of a client in one round: optimiser, step size and amount of work."""

    optimizer: AnyOptimiser = Sgd()
    """The local optimiser."""
    lr: PositiveRate | None = None
    """The step size eta; short for `optimizer.lr`."""
    lr_schedule: AnyLrSchedule = ConstantLr(kind="constant")
    """Schedule of the step size."""
    clip_norm: PositiveRate | None = None
    """Largest Euclidean norm of the vector that the optimiser receives in a step, for each client
    (default: no limit): a longer one is scaled down, as by `torch.nn.utils.clip_grad_norm_`. The
    vector is the mini-batch gradient with everything that is added to it: the algorithm's
    correction, the proximal term, and weight decay except that of `adamw`. Clipping the whole and
    not the gradient alone keeps the fixed points of exact methods.
    """
    epochs: Count | None = None
    """Passes over the client's data; the short last batch counts as a step:
    tau_i = epochs * ceil(n_i / batch_size).
    """
    steps: Count | None = None
    """Local steps tau, instead of epochs."""
    batch_size: BatchSize = "full"
    """Samples per step, at most all samples of the client; `full` uses all."""

    @model_validator(mode="after")
    def _one_length_and_rate(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        if self.lr is not None and self.optimizer.lr is not None:
            raise ValueError("give `lr` or `optimizer.lr`, not both")
        given = self.lr is not None or self.optimizer.lr is not None
        if self.lr_schedule.sets_lr and given:
            raise ValueError(f"{self.lr_schedule.kind} sets the step size; omit `lr`")
        if not self.lr_schedule.sets_lr and self.rate is None:
            raise ValueError("give the step size `lr`")
        return self

    @property
    def rate(self) -> float | None:
        """The step size eta, wherever it was given; None when the schedule sets it."""
        if self.lr_schedule.sets_lr:
            return None
        given = self.lr if self.lr is not None else self.optimizer.lr
        return self.optimizer.default_lr if given is None else given

    def step_sizes(self, rounds: int, round: int, clock: int) -> StepSizes:
        """The step sizes of a round (counted from 1, of `rounds`).

        `clock` counts the local steps of all rounds before it.
        """
        return self.lr_schedule.sizes(nan if self.rate is None else self.rate, round, rounds, clock)

    def build(self) -> Solver:
        """The local optimiser, with clipping."""
        return replace(self.optimizer.build(), clip_norm=self.clip_norm)
