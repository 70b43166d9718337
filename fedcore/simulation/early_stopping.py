"""Early stopping of one run: its state from one evaluation to the next. Standard library only."""

from dataclasses import dataclass, replace
from math import isfinite

from fedcore.simulation.report import StopReason
from fedcore.spec.search import EarlyStopping


@dataclass(frozen=True, slots=True)
class EarlyStoppingState:
    """A run so far, as early stopping sees it.

    With m_t the metric after round t and b the best before it, for `mode: min`:

        improved     m_t < b - min_delta, or there is no b; then b <- m_t, w <- 0, else w <- w + 1
        target       t >= min_rounds and m_t <= target
        patience     t >= min_rounds and w >= patience

    A value that is not finite improves nothing. In a round without a value nothing changes.
    """

    best: float | None = None
    """b."""
    waited: int = 0
    """w, evaluations since b."""
    reason: StopReason | None = None
    """Why the run ends; None while it goes on."""

    def update(self, rule: EarlyStopping, round: int, value: float | None) -> "EarlyStoppingState":
        """Return the state after `round`, in which the metric had this value."""
        if value is None:
            return self
        sign = -1.0 if rule.maximise else 1.0
        improved = isfinite(value) and (self.best is None or sign * value < sign * self.best - rule.min_delta)
        seen = EarlyStoppingState(value, 0) if improved else replace(self, waited=self.waited + 1)
        if round < rule.min_rounds:
            return seen
        if rule.target is not None and isfinite(value) and sign * value <= sign * rule.target:
            return replace(seen, reason=StopReason.TARGET)
        if rule.patience is not None and seen.waited >= rule.patience:
            return replace(seen, reason=StopReason.PATIENCE)
        return seen
