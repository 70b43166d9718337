"""FedAWARE: the server follows the min-norm point of the clients' momenta, which maximises gradient
diversity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.min_norm import inner_products, min_norm, unit_lengths
from fedcore.block import Decay
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor

First = Literal["gradient", "zero"]


@dataclass(frozen=True)
class MinNormMomentum(Aggregator):
    """m_i <- alpha m_i + (1 - alpha) delta_i for the cohort.

    The direction is the min-norm point of all m_i there are.

    The book holds, of the V clients that have taken part in the order in which they first did:
    `clients` [V], `momenta` [V, D], their inner products `gram` [V, V], and `weights` [V], the last
    round's lambda.
    """

    assures = Aggregator.assures

    alpha: float = 0.5
    normalise: bool = False
    first: First = "gradient"

    def start(self, x: Tensor) -> Vectors:
        return {
            "clients": x.new_zeros(0).long(),
            "momenta": x.new_zeros((0, len(x))),
            "gram": x.new_zeros((0, 0)).double(),
            "weights": x.new_zeros(0).double(),
        }

    def vectors_kept(self) -> tuple[int, int]:
        return 0, 1

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        new = ~(cohort.clients[:, None] == aggregator_state["clients"]).any(1)
        clients = _longer(aggregator_state["clients"], cohort.clients[new])
        momenta = _longer(aggregator_state["momenta"], 0 * deltas[new])
        rows = (cohort.clients[:, None] == clients).long().argmax(1)
        fresh = (1 - self.alpha) + (
            self.alpha * new.to(deltas) if self.first == "gradient" else 0 * new.to(deltas)
        )
        momenta[rows] = self.alpha * momenta[rows] + fresh[:, None] * deltas
        gram = _updated(aggregator_state["gram"], momenta, rows)
        weights, lengths = self._weigh(gram)
        counts = (weights * lengths).to(momenta)
        kept = {"clients": clients, "momenta": momenta, "gram": gram, "weights": weights}
        return Aggregate(counts @ momenta, counts[rows] * fresh, kept)

    def _weigh(self, gram: Tensor) -> tuple[Tensor, Tensor]:
        """lambda [V], and what each of the momenta is multiplied by first, [V], given their inner
        products [V, V].
        """
        lengths = unit_lengths(gram) if self.normalise else gram.new_ones(len(gram))
        uniform = gram.new_ones(len(gram)) / len(gram)
        return min_norm(gram * lengths * lengths[:, None], uniform).to(gram.device), lengths


def _updated(gram: Tensor, momenta: Tensor, rows: Tensor) -> Tensor:
    """A new tensor: the inner products of `momenta` [V, D], of which only `rows` [M] are not those
    in `gram`.
    """
    updated = gram.new_zeros((len(momenta), len(momenta)))
    updated[: len(gram), : len(gram)] = gram
    changed = inner_products(momenta[rows], momenta)
    updated[rows], updated[:, rows] = changed, changed.T
    return updated


def _longer(old: Tensor, new: Tensor) -> Tensor:
    """A new tensor: the rows of `old`, then the rows of `new`."""
    joined = old.new_zeros((len(old) + len(new), *old.shape[1:]))
    joined[: len(old)], joined[len(old) :] = old, new
    return joined


class FedAware(AlgorithmSpec):
    """The server keeps a momentum m_i per client and moves along the shortest vector of their
    convex hull.

        m_i <- alpha m_i + (1 - alpha) g_i,   g_i = x - y_i, for sampled clients; others keep theirs
        lambda = argmin over the simplex of |sum_i lambda_i m_i|^2
        x <- x - server_lr sum_i lambda_i m_i

    The hull holds the clients that have taken part: with an m_i never set, its shortest vector
    would be zero and the model never move. The weights of the participation scheme play no part.
    """

    source = (
        "Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient Diversity"
        " Maximization (FedAWARE), Algorithm 1"
    )
    fixed_point = "a point from which no direction improves all objectives"
    example = {"alpha": 0.5, "normalise": True}
    own_weights = True
    min_norm = True
    ranges = {"alpha": FloatRange(low=0.0, high=0.9)}  # FedQ's range

    kind: Literal["fedaware"] = "fedaware"
    alpha: Decay = 0.5
    """Weight of the old momentum (1 - alpha in the official code)."""
    normalise: bool = False
    """Scale every m_i to length 1 first, as the official code does; a zero stays zero."""
    first: First = "gradient"
    """m_i after a client's first round: `gradient`: g_i; `zero`: (1 - alpha) g_i, as if m_i had
    started at zero.
    """

    def aggregator(self) -> Aggregator:
        return MinNormMomentum(self.alpha, self.normalise, self.first)
