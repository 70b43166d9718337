"""`search` and `early_stopping`: which arms and runs are not carried to their last round."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_ROUNDS, Block, Finite
from fedcore.spec.evaluation import ScalarMeasure
from fedcore.statistics.summary import BETTER


def rungs(min_rounds: int, eta: int, rounds: int) -> tuple[int, ...]:
    """r eta^k for k < floor(log_eta(R / r)); none where R < r eta."""
    return (min_rounds, *rungs(min_rounds * eta, eta, rounds)) if min_rounds * eta <= rounds else ()


ExactFigure = Literal["objective", "suboptimality", "distance"]
"""What exact problems report whenever they are evaluated."""
Cost = Literal["local_steps", "bytes_up", "bytes_down", "simulated_seconds"]
"""What every round reports and every repetition finds again; wall-clock seconds are not of this kind."""
Metric = Literal[ScalarMeasure, ExactFigure, Cost]
"""What an arm or a run may be judged by."""
Mode = Literal["min", "max"]
RoundCount = Annotated[int, Field(ge=1, le=MAX_ROUNDS)]


class Judged(Block):
    """Whatever is decided by a metric of the rounds."""

    metric: Metric
    """A measure of `evaluation.measures`, a figure of exact problems (objective, suboptimality, distance), or local_steps, bytes_up,
    bytes_down, simulated_seconds."""
    mode: Mode | None = None
    """Whether less (`min`) or more (`max`) is better; absent, what the metric is known for: `min` for losses, `max` for accuracies."""

    @model_validator(mode="after")
    def _knows_what_is_better(self) -> Self:
        if self.mode is None and self.metric not in BETTER:
            raise ValueError(f"give `mode`: it is not known whether less (`min`) or more (`max`) {self.metric} is better")
        return self

    @property
    def maximise(self) -> bool:
        """Whether more is better."""
        return self.mode == "max" or (self.mode is None and BETTER[self.metric] is max)


class Halving(Judged):
    """What both kinds of successive halving have in common.

    Rungs are the rounds r eta^k, k = 0, 1, ..., K - 1, with r = `min_rounds`, R = `rounds` and K = floor(log_eta(R / r)). An arm plays
    up to a rung, is judged there by the mean of the metric over its seeds, and is promoted to the next one (from the last to round R) or
    stopped.
    """

    eta: Annotated[int, Field(ge=2, le=1_000)] = 3
    """One of so many arms goes on from each rung."""
    min_rounds: RoundCount
    """r, the first rung: every arm plays so many rounds. The most that an arm plays, R, is `rounds`."""


class Asha(Halving):
    """Asynchronous successive halving: an arm is promoted as soon as it is among the best 1 / eta of those that have reached its rung.

    No worker waits for a slow arm. What is decided depends on the order in which arms reach a rung; it is recorded, and can be replayed.
    """

    source: ClassVar[str] = "Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (MLSys), Algorithm 2"

    kind: Literal["asha"]


class SuccessiveHalving(Halving):
    """Synchronous successive halving: a rung is decided once all its arms are there, and the best floor(n / eta^(k + 1)) of n arms go on.

    The outcome is the same however many workers there are, and whatever their pace.
    """

    source: ClassVar[str] = (
        "Jamieson and Talwalkar 2016, Non-stochastic Best Arm Identification (AISTATS), as in Li et al. 2020, Algorithm 1"
    )

    kind: Literal["successive_halving"]


AnySearch = Annotated[Asha | SuccessiveHalving, Field(discriminator="kind")]


class EarlyStopping(Judged):
    """A run ends before its last round once the metric no longer improves, or is as good as wanted; each run by itself.

    It is checked in the rounds in which the metric is evaluated, and only there.
    """

    patience: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    """Evaluations in a row without improvement after which the run ends; absent, there is no such end."""
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """An improvement is more than this, counted from the best value so far."""
    min_rounds: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] = 0
    """The run does not end before this round."""
    target: Finite | None = None
    """The run ends once the metric is at least as good as this."""

    @model_validator(mode="after")
    def _ends_some_time(self) -> Self:
        if self.patience is None and self.target is None:
            raise ValueError("give `patience`, `target`, or both")
        return self
