"""`search` and `early_stopping`: arms and runs that stop before their last round."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_ROUNDS, Block, Finite
from fedcore.spec.evaluation import ScalarMeasure
from fedcore.statistics.summary import BETTER


def rungs(min_rounds: int, eta: int, rounds: int) -> tuple[int, ...]:
    """r eta^k for k < floor(log_eta(R / r)); none where R < r eta."""
    return (min_rounds, *rungs(min_rounds * eta, eta, rounds)) if min_rounds * eta <= rounds else ()


ExactFigure = Literal["objective", "suboptimality", "distance"]
"""Figures of exact problems at every evaluation."""
Cost = Literal["local_steps", "bytes_up", "bytes_down", "simulated_seconds"]
"""Reproducible costs of every round; wall-clock seconds are not reproducible."""
if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[ScalarMeasure, ExactFigure, Cost]
    """Metrics by which an arm or a run may be judged."""
Mode = Literal["min", "max"]
RoundCount = Annotated[int, Field(ge=1, le=MAX_ROUNDS)]


class Judged(Block):
    """Base of blocks that decide by a metric of the rounds."""

    metric: Metric
    """A measure of `evaluation.measures`, a figure of exact problems (objective, suboptimality,
    distance), or local_steps, bytes_up, bytes_down, simulated_seconds.
    """
    mode: Mode | None = None
    """Direction: lower (`min`) or higher (`max`) is better (default: that of the metric, e.g. `min`
    for losses, `max` for accuracies).
    """

    @model_validator(mode="after")
    def _knows_what_is_better(self) -> Self:
        if self.mode is None and self.metric not in BETTER:
            raise ValueError(f"give `mode`: {self.metric} has no default direction (`min` or `max`)")
        return self

    @property
    def maximise(self) -> bool:
        """True if higher is better."""
        return self.mode == "max" or (self.mode is None and BETTER[self.metric] is max)


class Halving(Judged):
    """Successive halving.

    Rungs are the rounds r eta^k, k = 0, 1, ..., K - 1, with r = `min_rounds`, R = `rounds` and K =
    floor(log_eta(R / r)). An arm runs up to a rung, where it is ranked by the mean of the metric
    over its seeds and either promoted to the next one (from the last to round R) or stopped.
    """

    eta: Annotated[int, Field(ge=2, le=1_000)] = 3
    """One in `eta` arms is promoted from each rung."""
    min_rounds: RoundCount
    """r, the first rung, which every arm reaches. The maximum R is `rounds`."""


class Asha(Halving):
    """Asynchronous successive halving: an arm is promoted as soon as it is among the best 1 / eta
    of those that have reached its rung.

    No worker waits for a slow arm. The decisions depend on the order in which arms reach a rung,
    which is recorded and can be replayed.
    """

    source: ClassVar[str] = (
        "Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (MLSys), Algorithm 2"
    )
    example = {"metric": "test_accuracy", "mode": "max", "min_rounds": 10}

    kind: Literal["asha"]


class SuccessiveHalving(Halving):
    """Synchronous successive halving: once all arms have reached a rung, the best floor(n /
    eta^(k + 1)) of n arms are promoted.

    The outcome does not depend on the number and speed of workers.
    """

    source: ClassVar[str] = (
        "Jamieson and Talwalkar 2016, Non-stochastic Best Arm Identification (AISTATS), as in Li et al. 2020,"
        " Algorithm 1"
    )
    example = {"metric": "suboptimality", "min_rounds": 1}

    kind: Literal["successive_halving"]


AnySearch = Annotated[Asha | SuccessiveHalving, Field(discriminator="kind")]


class EarlyStopping(Judged):
    """Ends each run once its metric no longer improves or reaches a target.

    The condition is checked in rounds in which the metric is evaluated.
    """

    patience: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    """Number of consecutive evaluations without improvement after which the run ends (default: no
    limit).
    """
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Minimum improvement over the best value so far."""
    min_rounds: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] = 0
    """The run does not end before this round."""
    target: Finite | None = None
    """Value of the metric at which the run ends."""

    @model_validator(mode="after")
    def _ends_some_time(self) -> Self:
        if self.patience is None and self.target is None:
            raise ValueError("give `patience`, `target`, or both")
        return self
