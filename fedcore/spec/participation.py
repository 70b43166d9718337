"""`participation`: which clients take part in a round, and how their changes are weighed."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_CLIENTS, Block, Fraction
from fedcore.spec.systems import ClientId, Probability

Weighting = Literal["samples", "uniform", "unbiased", "original"]


class _Participation(Block):
    weighting: Weighting | None = None
    """`samples`: n_i renormalised over the cohort; `uniform`: equal; `unbiased`: divided by the
    expected number of times client i is drawn, so that the weighted update is unbiased for sum_i
    p_i Delta_i; `original`: p_i without renormalisation, as if all other clients had stayed at x, x
    <- sum_S p_i y_i + sum_not_S p_i x (the baseline scheme of Li et al.). Default: that of the
    algorithm, else that of the scheme.
    """


class Full(_Participation):
    """Every client in every round; weights p_i."""

    kind: Literal["full"]


class _Sampled(_Participation):
    clients_per_round: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None
    """K, the clients drawn each round."""
    fraction: Fraction | None = None
    """K as a fraction of all clients, rounded, at least one; alternative to `clients_per_round`."""

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        if (self.clients_per_round is None) == (self.fraction is None):
            raise ValueError("give either `clients_per_round` or `fraction`")
        return self

    def cohort_size(self, population: int) -> int:
        """K for a population of N clients."""
        if self.clients_per_round is not None:
            return self.clients_per_round
        assert self.fraction is not None
        return max(1, round(self.fraction * population))


class Uniform(_Sampled):
    """Uniformly without replacement, weights n_i renormalised over the cohort (McMahan et al.;
    FedProx's experiments).
    """

    example = {"clients_per_round": 10}

    kind: Literal["uniform"]


class WithReplacement(_Sampled):
    """S1 of Li et al.: K draws with replacement with probability p_i, each draw weighing 1/K."""

    example = {"clients_per_round": 10}

    kind: Literal["with_replacement"]


class ByShare(_Sampled):
    """K different clients, one after another with probability p_i among those left, each weighing
    1/K (FedProx, Algorithm 2).
    """

    example = {"clients_per_round": 10}

    kind: Literal["by_share"]


class WithoutReplacement(_Sampled):
    """S2 of Li et al.: K clients uniformly without replacement, x <- (N/K) sum_S p_i y_i.

    The weights sum to one only when all p_i are equal; otherwise the iterate itself is scaled, as
    printed. `weighting: unbiased` adds the weighted changes to x instead; `transformed` makes all
    p_i equal.
    """

    example = {"weighting": "unbiased", "fraction": 0.2}

    kind: Literal["without_replacement"]
    transformed: bool = False
    """Scheme II for unbalanced p_i (Li et al., Section 3.3): client i trains on F~_i = p_i N F_i,
    and all have equal weight. The objective stays sum_i p_i F_i; a client's smoothness grows with
    p_i N, so step sizes must fall.
    """


class Bernoulli(_Participation):
    """Each client is selected independently with its probability, as in FedDyn's code.

    A cohort can have any size, including zero.
    """

    example = {"probability": 0.2}

    kind: Literal["bernoulli"]
    probability: Probability
    """One probability for all clients, or one per client by client id."""


class Trace(_Participation):
    """Given cohorts for every round; a client listed twice counts as drawn twice."""

    example = {"rounds": [[0, 1], [1, 1]]}

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """A list of client ids per round."""


AnyParticipation = Annotated[
    Full | Uniform | WithReplacement | ByShare | WithoutReplacement | Bernoulli | Trace,
    Field(discriminator="kind"),
]
