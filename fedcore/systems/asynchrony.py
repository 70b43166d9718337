"""Asynchronous rounds: clients, or tiers of them, start and arrive on the simulated clock without
waiting for others, and a round is a step of the server. Block `asynchrony`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.block import Block, ClientCount, NonNegative
from fedcore.errors import SpecificationError
from fedcore.lazy import np
from fedcore.systems.participation import Full, Participation, Uniform
from fedcore.systems.participation.base import Weighting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]


class StalenessWeight(Block):
    """Factor s of a client's weight by its staleness: how many steps the server took between the
    client's start and its arrival.
    """

    source: ClassVar[str] = (
        "Xie et al., Asynchronous Federated Optimization, OPT 2020, with t - tau = staleness"
    )

    if TYPE_CHECKING:
        kind: str

    def factors(self, staleness: Ids) -> Floats:
        """[M] the factors of clients with `staleness` [M]; 1 if it is 0."""
        raise NotImplementedError


class ConstantStaleness(StalenessWeight):
    """s = 1: stale clients count like others."""

    kind: Literal["constant"] = "constant"

    def factors(self, staleness: Ids) -> Floats:
        return np.ones(len(staleness))


class PolynomialStaleness(StalenessWeight):
    """s = (1 + staleness)^-a; FedBuff takes a = 0.5."""

    example = {"a": 0.5}

    kind: Literal["polynomial"] = "polynomial"
    a: NonNegative = 0.5
    """Exponent."""

    def factors(self, staleness: Ids) -> Floats:
        factors: Floats = np.power(1.0 + staleness, -self.a)
        return factors


class HingeStaleness(StalenessWeight):
    """s = 1 up to a staleness of b, and 1 / (1 + a (staleness - b)) beyond."""

    example = {"a": 10.0, "b": 4}

    kind: Literal["hinge"] = "hinge"
    a: NonNegative
    """Slope of 1 / s beyond b."""
    b: Annotated[int, Field(ge=0, le=1_000_000)]
    """Largest staleness that costs nothing."""

    def factors(self, staleness: Ids) -> Floats:
        return 1.0 / (1.0 + self.a * np.maximum(staleness - self.b, 0))


AnyStaleness = Annotated[
    ConstantStaleness | PolynomialStaleness | HingeStaleness, Field(discriminator="kind")
]


class Asynchrony(Block):
    """How clients start, and when and how the server uses what arrives."""

    source: ClassVar[str]
    """The publication, with the algorithm."""
    mixes_models: ClassVar[bool] = False
    """True if the server mixes models, so that no server optimiser applies; else it adds changes."""
    averages: ClassVar[bool] = True
    """True if a step of the server may average several clients, as an aggregator does."""
    weighting: ClassVar[Weighting] = "uniform"
    """Weights of the paper, without regard to staleness."""

    if TYPE_CHECKING:
        kind: str

    def models_kept(self) -> int:
        """Most models [D] that the server keeps beside its own."""
        raise NotImplementedError

    def weights(self, weights: Floats, staleness: Ids) -> Floats:
        """Aggregation weights [M] of clients with `staleness` [M], given those [M] without regard to
        it, which sum to 1.
        """
        raise NotImplementedError

    def check(self, participation: Participation, clients: int) -> None:
        """Raise SpecificationError if the block does not fit `participation` and N = `clients`."""
        raise NotImplementedError


class ClientsAtATime(Asynchrony):
    """Clients start and arrive one by one; a step of the server takes a fixed number of arrivals."""

    concurrency: ClientCount
    """Number of clients that train at the same time. Whenever fewer do, others are started, drawn
    uniformly from the clients that neither train nor wait in the buffer, and that can be reached.
    """
    staleness: AnyStaleness = PolynomialStaleness(kind="polynomial")
    """Weight of a client by its staleness."""

    @property
    def arrivals(self) -> int:
        """Number of clients whose arrival makes a step of the server."""
        raise NotImplementedError

    def models_kept(self) -> int:
        return self.concurrency  # Those that clients in training started from.

    def check(self, participation: Participation, clients: int) -> None:
        if not participation.everyone:
            raise SpecificationError(
                "/participation",
                f"with `{self.kind}`, clients are started whenever fewer than `concurrency` train: omit this,"
                " or use `full` with a `weighting`",
            )
        if self.concurrency > clients:
            raise SpecificationError(
                "/asynchrony/concurrency",
                f"{self.concurrency} clients cannot train at the same time, there are {clients}: use at most"
                f" {clients}",
            )


class FedBuff(ClientsAtATime):
    """Buffered aggregation: a step of the server for every K arrivals.

    x <- x + server_lr (1/K) sum_i s(staleness_i) Delta_i, with Delta_i = y_i - x_i of the model x_i
    that client i started from. `weighting: samples` takes n_i / sum_j n_j for 1/K. Departure: a client
    that waits in the buffer is not started again before the server's step. The authors' simulator,
    FLSim, also divides s by its value at an average staleness, which rescales server_lr.
    """

    source = (
        "Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022 (FedBuff)"
    )
    example = {"concurrency": 20, "buffer": 10}

    kind: Literal["fedbuff"] = "fedbuff"
    buffer: ClientCount = 10
    """K, the arrivals between two steps of the server."""

    @property
    def arrivals(self) -> int:
        return self.buffer

    def weights(self, weights: Floats, staleness: Ids) -> Floats:
        return weights * self.staleness.factors(staleness)

    def check(self, participation: Participation, clients: int) -> None:
        super().check(participation, clients)
        if self.buffer > clients:
            raise SpecificationError(
                "/asynchrony/buffer",
                f"a client is in the buffer once, so {clients} clients cannot fill {self.buffer} places: use"
                f" at most {clients}",
            )


class FedAsync(ClientsAtATime):
    """Asynchronous mixing: a step of the server for every arrival.

    x <- (1 - alpha_t) x + alpha_t y, alpha_t = alpha s(staleness). The paper's regularisation
    rho/2 |y - x_i|^2 of the local objective is that of `fedprox`, with mu = rho. Departure: the
    server takes steps one after the other in the order of arrivals, so staleness follows from the
    simulated times, and is counted from 0.
    """

    source = "Xie et al., Asynchronous Federated Optimization, OPT 2020 (FedAsync)"
    mixes_models = True
    averages = False
    example = {"concurrency": 10, "alpha": 0.6}

    kind: Literal["fedasync"] = "fedasync"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Weight of a client's model that is not stale."""

    @property
    def arrivals(self) -> int:
        return 1

    def weights(self, weights: Floats, staleness: Ids) -> Floats:
        return self.alpha * weights * self.staleness.factors(staleness)

    def check(self, participation: Participation, clients: int) -> None:
        super().check(participation, clients)
        if participation.weighting is not None:
            raise SpecificationError(
                "/participation/weighting",
                "fedasync mixes one model at a time, with weight `alpha`: omit this",
            )


class FedAT(Asynchrony):
    """Asynchronous tiers: M tiers of clients of similar speed, each with synchronous rounds of its own,
    and a step of the server whenever a tier ends a round.

    In a round of tier m, counted from the fastest, clients drawn from the tier train from the
    server's model, the server waits for all of them, and w_m becomes the mean of their models by
    numbers of samples. With T_m the rounds that tier m has ended and T = T_1 + ... + T_M,

        x <- sum_m (T_(M+1-m) / T) w_m

    so the tier that ends the fewest rounds has the weight of the one that ends the most. Before its
    first round, w_m is the first model. `participation` (`uniform` or `full`) draws the clients of
    a round from one tier. The paper's regularisation lambda/2 |y - x|^2 of the local objective is
    that of `fedprox`, with mu = lambda; its compression of messages by polyline encoding is left
    to `compression`. Choices: tiers have the same number of clients, up to one, and are formed once, by
    the simulated seconds of each client's work in the first round, with a dense download.
    """

    source = (
        "Chai et al., FedAT: A High-Performance and Communication-Efficient Federated Learning System with"
        " Asynchronous Tiers, SC 2021 (FedAT)"
    )
    mixes_models = True
    weighting = "samples"
    example = {"tiers": 5}

    kind: Literal["fedat"] = "fedat"
    tiers: Annotated[int, Field(ge=1, le=1_000)] = 5
    """M, the number of tiers."""

    def models_kept(self) -> int:
        # Of each tier: the last one, and two of the one that its clients in training started from.
        return 3 * self.tiers

    def weights(self, weights: Floats, staleness: Ids) -> Floats:
        return weights

    def check(self, participation: Participation, clients: int) -> None:
        if not isinstance(participation, Full | Uniform):
            raise SpecificationError(
                "/participation",
                f"with `fedat`, the clients of a round are drawn from a tier: use `uniform` or `full`, not"
                f" `{participation.kind}`",
            )
        if self.tiers > clients:
            raise SpecificationError(
                "/asynchrony/tiers",
                f"{clients} clients cannot form {self.tiers} tiers: use at most {clients}",
            )


AnyAsynchrony = Annotated[FedBuff | FedAsync | FedAT, Field(discriminator="kind")]
