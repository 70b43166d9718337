"""Control variates: the rule that SCAFFOLD and variance-reduced FedNova share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.core import Cohort, Local, Rule, Upload, Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ControlVariates(Rule):
    """y <- y - eta (g_i(y) - c_i + c), where c_i estimates client i's gradient and c the population's.

    After a round c_i is either the client's full gradient at x (`estimate: anchor`) or the mean of the raw gradients of
    its steps (`estimate: steps`), weighted by a_i as the solver weighs them:

        c_i <- c_i - c + (x - y) / (eta ||a_i||_1)

    which for plain SGD is SCAFFOLD's option II, since then ||a_i||_1 = tau_i. The server keeps c = sum_i s_i c_i with
    s_i = 1/N (`mean: uniform`) or s_i = p_i (`mean: share`).
    """

    estimate: Literal["anchor", "steps"] = "steps"
    mean: Literal["uniform", "share"] = "uniform"

    def memory(self) -> tuple[str, ...]:
        return ("control",)

    def shared(self) -> tuple[str, ...]:
        return ("control",)

    def needs_anchor(self) -> bool:
        return self.estimate == "anchor"

    def direction(self, grad: Tensor, y: Tensor, local: Local) -> Tensor:
        return grad - local.memory["control"] + local.shared["control"]

    def finish(self, y: Tensor, local: Local) -> Upload:
        old = local.memory["control"]
        delta = y - local.x
        travelled = delta / (local.lr * local.effort)
        new = local.anchor if local.anchor is not None else old - local.shared["control"] - travelled
        return Upload(delta, memory={"control": new}, shared={"control": new - old})

    def absorb(self, shared: Vectors, sent: Vectors, cohort: Cohort) -> Vectors:
        changes = sent["control"]
        change = cohort.share @ changes if self.mean == "share" else changes.sum(0) / cohort.population
        return {"control": shared["control"] + change}
