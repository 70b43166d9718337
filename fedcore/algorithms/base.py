"""Base class of the specifications of algorithms."""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

from fedcore.block import Block, PositiveRate
from fedcore.core import (
    Aggregator,
    Declaring,
    Described,
    Exchange,
    LocalSgd,
    Models,
    Objective,
    Rule,
    ServerOptimiser,
    Statement,
    Tuner,
)
from fedcore.ranges import AnyRange


class RoundLaw(NamedTuple):
    """Closed form of a round on quadratics, with exact gradients and full participation."""

    round_map: Literal["averaging", "normalised_averaging", "gradient_correction"]
    """Map of `fedcore.theory.quadratics` that one round is."""
    mu: float = 0.0
    """Strength of the proximal term."""


class AlgorithmSpec(Declaring, Block):
    """An algorithm and its parameters; parts that a subclass does not override are FedAvg's."""

    described: ClassVar[Described] = {
        "averages_models": Statement(
            ("rule", "models", "aggregator"), "`averages_models = False`", base_is_careful=True
        ),
        "round_law": Statement(
            ("rule", "models", "exchange", "tuner", "aggregator", "server"),
            "`def round_law(self, prox_mu, *, uniform): return None`",
            base_is_careful=True,
        ),
    }

    source: ClassVar[str]
    """The publication, with the algorithm or equation number."""
    fixed_point: ClassVar[str]
    """Fixed point on quadratics with full gradients and full participation, for the reference."""
    weighting: ClassVar[Literal["uniform"] | None] = None
    """Default weighting of the cohort; None: that of the participation scheme."""
    averages_models: ClassVar[bool] = False
    """True if the update is the weighted mean of the clients' models, as sampling scheme S2, which
    scales the model, requires.
    """
    averages_exactly: ClassVar[bool] = False
    """The server's model must be the average of what its distinct clients hold, or the fixed point
    is no optimum.

    Each client of a cohort counts once however often it was drawn, and server optimisers, weights
    that do not sum to 1 and a downlink that loses part of a message are rejected.
    """
    own_weights: ClassVar[bool] = False
    """True if the algorithm computes its own weights and ignores the weights of the participation
    scheme.
    """
    reference: ClassVar[bool] = False
    """True if it is a line of reference for methods and no method: its arms are not among the best."""
    min_norm: ClassVar[bool] = False
    """True if the aggregator's state holds min-norm weights: `clients` [V] and `weights` [V]."""

    ranges: ClassVar[Mapping[str, AnyRange]] = {}
    """Ranges of its parameters over which the method is tuned, by field; see `fedcore.spec.tuning`."""

    kind: str
    server_lr: PositiveRate = 1.0
    """The server's step size; short for `server: {lr: ...}`."""

    def rule(self) -> Rule:
        """The clients' rule."""
        return LocalSgd()

    def models(self) -> Models:
        """The models of server and clients."""
        return Models()

    def objective(self) -> Objective | None:
        """The loss that clients descend; None if it is that of the problem."""
        return None

    def exchange(self) -> Exchange | None:
        """The exchange of gradients before training; None if there is none."""
        return None

    def tuner(self) -> Tuner | None:
        """The parameters that the server adapts; None if there are none."""
        return None

    def aggregator(self) -> Aggregator:
        """The server's aggregation."""
        return Aggregator()

    def server(self, lr: float) -> ServerOptimiser:
        """The server's optimiser with step size `lr`."""
        return ServerOptimiser(lr)

    def round_law(self, prox_mu: float, *, uniform: bool) -> RoundLaw | None:
        """The closed form of a round; None if none is known.

        `prox_mu` is the local solver's; `uniform` is true if the server averages uniformly.
        """
        return None
