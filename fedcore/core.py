"""The vocabulary: what a federated algorithm is, as four independent frozen values.

Glossary. One word for one thing, here and everywhere else:

- *client*: one simulated device or silo; N of them form the *population*. *Cohort*: the M clients
  of one round.
- *x* [D]: the server's model, one flat vector. *y* [..., D]: a client's model while it trains.
- *step*: one local mini-batch update; tau_i of them in a round. *delta* = y - x [..., D]: what a
  client's training changed.
- *direction*: in a rule, what a local step descends along; in an aggregator, what the server moves
  along.
- *effort* ||a_i||_1: how far the local solver travels, over lr, when every gradient is 1 (FedNova,
  Section III); tau_i for plain SGD.
- *anchor*: a client's full gradient at x, before it trains. *gathered*: the cohort's mean anchor,
  as the server sends it back.
- *memory*: vectors a client keeps between rounds. *shared*: vectors the server broadcasts beside x.
- *book*: what the server's aggregator keeps between rounds, tensors of any shape by name.

Every tensor's last axis is the parameters, D; any axes before it are clients. So a rule is written
for one client and serves a cohort, and nothing here imports a tensor library: the operations are
those of the tensors handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor

Vectors = Mapping[str, "Tensor"]
FirstExchange = Literal["compressed", "exact", "zero"]


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What one client (or, with a leading axis, each client of a cohort) knows while it trains in
    one round.
    """

    x: Tensor
    """[D] the model as broadcast."""
    shared: Vectors
    """[D] each."""
    memory: Vectors
    """[..., D] each."""
    full_gradient: Tensor | None
    """[..., D] the client's full gradient at x, if the rule asks for it."""
    mean_gradient: Tensor | None
    """[D] the weighted mean of the cohort's anchors, if the rule gathers them; compression may have
    changed it.
    """
    steps: Tensor
    """[..., 1] tau_i."""
    normaliser: Tensor
    """[..., 1] ||a_i||_1."""
    lr: float
    """The step size eta at the first local step of the round."""


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """What a client sends at the end of a round, and what it keeps."""

    delta: Tensor
    """[..., D] y - x."""
    memory: Vectors = field(default_factory=dict)
    """[..., D] each: the client's new memory."""
    shared: Vectors = field(default_factory=dict)
    """[..., D] each: what it sends beside delta, by the name of the shared vector it is for."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The clients whose uploads reach the server in one round."""

    clients: Tensor
    """[M] ids, ascending."""
    weights: Tensor
    """[M] aggregation weights w_i. They need not sum to 1: with `original` and `unbiased` weighting
    W = sum_i w_i varies.
    """
    share: Tensor
    """[M] p_i, each client's share of the whole objective."""
    objective: Tensor
    """[M] v_i, what F_i counts in the objective that the weighting stands for: 1/N if it is
    `uniform`, else p_i.
    """
    population: int
    """N."""
    steps: Tensor
    """[M] tau_i."""
    normaliser: Tensor
    """[M] ||a_i||_1."""

    def mean(self, values: Tensor) -> Tensor:
        """sum_i w_i v_i / sum_i w_i [...] of `values` v [M, ...]; zero where all weights are.

        A factor of an update that is itself weighted by w must be this mean, or W = sum_i w_i would
        count twice.
        """
        total = self.weights.sum()
        return (self.weights @ values) / (total + (total == 0))


class AffineForm(NamedTuple):
    """direction(g, y) = g + mu (y - x) + offset, with an offset that is constant over a round."""

    mu: float = 0.0
    has_offset: bool = False


@dataclass(frozen=True)
class ClientRule:
    """The client's half of an algorithm and the server's answer to it; as it stands, FedAvg's."""

    def memory(self) -> tuple[str, ...]:
        """Names of the vectors each client keeps.

        They start at zero, unless `start` says otherwise.
        """
        return ()

    def start(self, x: Tensor) -> Vectors:
        """Where those of the memory that do not start at zero start, [D] each, given the first
        model x [D].
        """
        return {}

    def shared(self) -> tuple[str, ...]:
        """Names of the vectors the server broadcasts beside x; they start at zero."""
        return ()

    def needs_full_gradient(self) -> bool:
        """Whether each client computes its full gradient at x before it trains."""
        return False

    def exchanges_gradients(self) -> bool:
        """Whether each round begins with an exchange, anchors up and their weighted mean down.

        Compression then acts on those, and the models go exactly.
        """
        return False

    def first_exchange(self) -> FirstExchange:
        """The exchange of the first round: compressed as any, exact, or none and a gathered
        gradient of zero.
        """
        return "compressed"

    def subtracts_gradient_at_x(self) -> bool:
        """Whether the gradient a step hands to `direction` is that at y less that at x, over the
        same mini-batch.
        """
        return False

    def step_size_scale(self, steps: Tensor) -> Tensor | float:
        """What multiplies the step size of a client that takes `steps` local steps, [..., 1]."""
        return 1.0

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        """What a local step descends along, [..., D]."""
        return grad

    def affine_form(self) -> AffineForm | None:
        """The form of `direction`, which allows faster engines; None for any other rule.

        Engines rely on it without calling `direction` in each step. A rule with its own `direction`
        declares its form beside it, or is trained step by step.
        """
        return AffineForm() if type(self).direction is ClientRule.direction else None

    def finish(self, y: Tensor, context: ClientContext) -> ClientUpdate:
        """What the client sends and keeps after its last step."""
        return ClientUpdate(delta=y - context.x)

    def receives_new_model(self) -> bool:
        """Whether the cohort hears the next model at the end of the round, not only when a client
        takes part again.
        """
        return False

    def update_memory(self, update: ClientUpdate, x: Tensor, context: ClientContext) -> Vectors:
        """The client's memory at the end of a round.

        `upload.delta` is the change as the server decoded it (with error feedback the exact one,
        whose rest is sent later): memory that must agree with what the server made of it is
        computed here, and not in `finish`. `local` is the round's, x [D] the next model, for rules
        that hear it.
        """
        return update.memory

    def update_shared(self, shared: Vectors, sent: Vectors, cohort: Cohort) -> Vectors:
        """The shared vectors [D] after the server has received `sent` [M, D]."""
        return shared

    def adaptive_parameters(self) -> Mapping[str, float]:
        """Numbers of the rule that the server adapts after each round, as they start.

        With none, the losses are not needed.
        """
        return {}

    def with_parameters(self, parameters: Mapping[str, float]) -> ClientRule:
        """The rule of a round, given what its numbers have become."""
        return self

    def adapt_parameters(self, parameters: Mapping[str, float], loss: float) -> Mapping[str, float]:
        """The numbers after a round that led to a model with training loss f(x) = `loss`.

        The first call has that of the first model.
        """
        return parameters


@dataclass(frozen=True)
class Solver:
    """The local optimiser: SGD with weight decay, a proximal term and momentum."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0

    def direction(
        self, rule: ClientRule, grad: Tensor, y: Tensor, velocity: Tensor | None, context: ClientContext
    ) -> tuple[Tensor, Tensor | None]:
        """What one local step descends along.

        With v as the velocity: v <- rho v + direction(g + wd y) + mu (y - x); then y <- y - lr v.
        Returns v [..., D], and the velocity to hand to the next step (None without momentum and
        before the first).
        """
        if self.weight_decay:
            grad = grad + self.weight_decay * y
        direction = rule.direction(grad, y, context)
        if self.prox_mu:
            direction = direction + self.prox_mu * (y - context.x)
        if not self.momentum:
            return direction, None
        if velocity is not None:
            direction = self.momentum * velocity + direction
        return direction, direction


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What an aggregator makes of a round."""

    direction: Tensor
    """[D] x + direction is where plain averaging would put the server."""
    coefficients: Tensor
    """[M] what each client's delta counts in the direction."""
    aggregator_state: Vectors
    """The aggregator's new book."""


@dataclass(frozen=True)
class Aggregator:
    """Cohort deltas to one direction; as it stands, the weighted mean of FedAvg.

    One that sees no more of the deltas than weighted sums of them says so: they are then summed up
    as clients train, and never held.
    """

    def start(self, x: Tensor) -> Vectors:
        """The book before the first round, of the type and on the device of x [D]."""
        return {}

    def vectors_kept(self) -> tuple[int, int]:
        """How many vectors [D] the book holds: for the server itself, and for each client that has
        taken part.
        """
        return 0, 0

    def coefficients(self, cohort: Cohort) -> Tensor:
        """c_i [M]: what each of the deltas counts in the direction, where that does not depend on
        them.
        """
        return cohort.weights

    def weighted_sums(self, cohort: Cohort) -> Tensor | None:
        """[K, M], a row for each weighted sum of the deltas that `combine` wants to see.

        None where it wants to see each delta.
        """
        return self.coefficients(cohort)[None]

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        """The sums [K, D], or each delta [M, D], to a direction; as it stands sum_i c_i delta_i."""
        return Aggregate(seen[0], self.coefficients(cohort), aggregator_state)


@dataclass(frozen=True)
class ServerOptimiser:
    """How the server moves along the direction; as it stands, SGD: x <- x + lr direction."""

    lr: float = 1.0

    def start(self) -> Mapping[str, float]:
        """The state vectors by name, with the value every entry starts from."""
        return {}

    def step(self, direction: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        """The change of x [D], and the new state."""
        return self.lr * direction, state


@dataclass(frozen=True)
class Compressor:
    """What a message [..., D] is replaced by on the wire; as it stands, itself."""

    error_feedback: bool = False

    def sample(self, rng: Generator, dim: int) -> NDArray[Any] | None:
        """The random numbers one message of D = `dim` numbers is compressed with, from its own
        stream; None: nothing is left to chance.
        """
        return None

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        """The message as the receiver decodes it, [..., D].

        `drawn` [..., *] holds what `draw` gave for each message.
        """
        return message

    def message_bytes(self, dim: int, word: int) -> int:
        """Bytes on the wire for one message of D = `dim` numbers of `word` bytes."""
        return dim * word


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: four independent choices, and the local solver they run with."""

    rule: ClientRule = ClientRule()
    aggregator: Aggregator = Aggregator()
    server: ServerOptimiser = ServerOptimiser()
    solver: Solver = Solver()
    uplink: Compressor = Compressor()
    downlink: Compressor = Compressor()
