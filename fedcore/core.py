"""The interface that algorithms implement: four independent frozen values.

Terms:

- *client*: one simulated device or silo; N of them form the *population*. *Cohort*: the M clients
  of one round.
- *x* [D]: the server's model, one flat vector. *y* [..., D]: a client's model while it trains.
- *step*: one local mini-batch update; tau_i of them in a round. *delta* = y - x [..., D]: the
  change of the model by a client's training.
- *direction*: of a rule, the vector that a local step descends along; of an aggregator, the vector
  that the server moves along.
- *normaliser* ||a_i||_1: distance, over lr, that the local solver travels when every gradient is 1
  (FedNova, Section III); tau_i for plain SGD.
- *full gradient*: a client's gradient at x over all its data, before it trains. *Mean gradient*: its
  weighted mean over the cohort, as the server sends it back.
- *memory*: vectors a client keeps between rounds. *shared*: vectors the server broadcasts beside x.
- *personal model* [..., D]: the model that a client itself uses, by default x.
- *aggregator state*: tensors of any shape, by name, that the aggregator keeps between rounds.

The last axis of every tensor is the parameters, D; axes before it are clients. A rule written for
one client therefore serves a cohort too. No tensor library is imported here: operations are those
of the tensors that are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from fedcore.assurance import Assurance, Assurances

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor

Vectors = Mapping[str, "Tensor"]
FirstExchange = Literal["compressed", "exact", "zero"]


def clip_factors(norms: Tensor, longest: Tensor | float) -> Tensor:
    """min(1, longest / |v|) [...] of vectors v whose `norms` |v| [...] are given."""
    factors: Tensor = longest / norms.clamp(min=1e-30)
    return factors.clamp(max=1)


Described = Mapping[str, tuple[str, ...]]


class Declaring:
    """A class some of whose attributes describe methods, so that others need not call these.

    A description ends where a subclass overrides a described method and says nothing itself: it is
    then that of the class which has `described`.
    """

    described: ClassVar[Described] = {}
    """The methods that each description is of."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for description, methods in cls.described.items():
            depth = {
                name: next(level for level, base in enumerate(cls.__mro__) if name in vars(base))
                for name in (description, *methods)
            }
            if any(depth[name] < depth[description] for name in methods):
                first = next(base for base in reversed(cls.__mro__) if description in vars(base))
                setattr(cls, description, vars(first)[description])


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Inputs of one client (or, with a leading axis, of each client of a cohort) in a round."""

    x: Tensor
    """[D] the model as broadcast, or [..., D] the one of several that each client chose; while clients
    train, and in `finish`, the rule's `starting_point` where it has one, [..., D] or longer.
    """
    shared: Vectors
    """[D] each."""
    memory: Vectors
    """[..., D] each, or of the length that the rule's `start` gives."""
    full_gradient: Tensor | None
    """[..., D] the client's full gradient at the rule's `full_gradient_at`, if the rule needs it."""
    mean_gradient: Tensor | None
    """[D] the weighted mean of the cohort's full gradients, as the clients received it, if the rule
    exchanges gradients.
    """
    steps: Tensor
    """[..., 1] tau_i."""
    normaliser: Tensor
    """[..., 1] ||a_i||_1; NaN if the local optimiser is not linear in the gradients."""
    lr: float
    """The step size eta at the first local step of the round."""

    def take(self, rows: Tensor | slice | int) -> ClientContext:
        """The inputs of some of the clients of a cohort, or of one."""
        return replace(
            self,
            x=self.x if self.x.dim() == 1 else self.x[rows],
            memory={name: vectors[rows] for name, vectors in self.memory.items()},
            full_gradient=None if self.full_gradient is None else self.full_gradient[rows],
            steps=self.steps[rows],
            normaliser=self.normaliser[rows],
        )


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """Message of a client at the end of a round, and its new memory."""

    delta: Tensor
    """[..., D] y - x."""
    memory: Vectors = field(default_factory=dict)
    """[..., D] each: the client's new memory."""
    shared: Vectors = field(default_factory=dict)
    """[..., D] each: vectors sent beside delta, by the name of the shared vector they update."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The clients whose updates reach the server in one round."""

    clients: Tensor
    """[M] ids, ascending."""
    weights: Tensor
    """[M] aggregation weights w_i. They need not sum to 1: with `original` and `unbiased` weighting
    W = sum_i w_i varies.
    """
    share: Tensor
    """[M] p_i, each client's share of the whole objective."""
    objective: Tensor
    """[M] v_i, the weight of F_i in the objective that the weighting stands for: 1/N if it is
    `uniform`, else p_i.
    """
    population: int
    """N."""
    steps: Tensor
    """[M] tau_i."""
    normaliser: Tensor
    """[M] ||a_i||_1."""
    order: Tensor | None = None
    """[M] 0 to M - 1 in an order drawn from the round's keyed stream, for aggregators that ask for
    it.
    """
    losses: Tensor | None = None
    """[M] F_i(x) of each client before it trains, for aggregators that ask for it."""
    models: Tensor | None = None
    """[M] which of the server's models each client trained, from 0; None if there is only one."""

    def without(self, dropped: Tensor) -> Cohort:
        """The cohort without clients that are `dropped` [M]; it has no `order`."""
        rows: dict[str, Any] = {name: getattr(self, name) for name in _ROWS}
        left: dict[str, Any] = {name: row if row is None else row[~dropped] for name, row in rows.items()}
        return replace(self, order=None, **left)

    def mean(self, values: Tensor) -> Tensor:
        """sum_i w_i v_i / sum_i w_i [...] of `values` v [M, ...]; zero if all weights are zero.

        A factor of an update that is itself weighted by w must be this mean; otherwise
        W = sum_i w_i would count twice.
        """
        total = self.weights.sum()
        return (self.weights @ values) / (total + (total == 0))


_ROWS = ("clients", "weights", "share", "objective", "steps", "normaliser", "losses", "models")


class Adaptation(NamedTuple):
    """Training of a personal model by its client before it is evaluated.

    It takes `steps` steps y <- y - lr (grad F_i(y) + mu (y - y_0)) over all the client's samples.
    """

    steps: int
    lr: float
    mu: float = 0.0


class AffineForm(NamedTuple):
    """direction(g, y) = g + mu (y - x) + offset, with an offset that is constant over a round."""

    mu: float = 0.0
    has_offset: bool = False


def find_overridden(part: object, base: type) -> set[str]:
    """Names of the methods of `base` in place of which the class of `part` has its own."""
    names = [name for name in dir(base) if callable(getattr(base, name)) and not name.startswith("_")]
    return {name for name in names if _overrides(part, base, name)}


def _overrides(part: object, base: type, *methods: str) -> bool:
    """True if the class of `part` has one of the `methods` of its own, in place of that of `base`."""
    return any(getattr(type(part), name) is not getattr(base, name) for name in methods)


@dataclass(frozen=True)
class ClientRule(Declaring):
    """The client's part of an algorithm and the server's response; by default local SGD."""

    assures: ClassVar[Assurances] = frozenset(
        {
            Assurance.CHANGE_ALONE,
            Assurance.OWN_DATA,
            Assurance.NOISY_GRADIENTS,
            Assurance.ONE_GRADIENT,
        }
    )
    """Statements about privacy; a class that overrides a method declares its own (`find_assurances`).
    Messages that `shared`, `exchanges_gradients` and their like announce need not be taken out.
    """
    described: ClassVar[Described] = {"affine_form": ("direction", "gradient", "step_taken")}

    def memory(self) -> tuple[str, ...]:
        """Names of the vectors that each client keeps; they start at zero unless `start` differs."""
        return ()

    def start(self, x: Tensor) -> Vectors:
        """Initial values of the memory that does not start at a vector [D] of zeros, given the first
        model x [D]. They may have another length.
        """
        return {}

    def shared(self) -> tuple[str, ...]:
        """Names of the vectors the server broadcasts beside x; they start at zero."""
        return ()

    def for_model(self, coordinates: Mapping[str, Tensor]) -> ClientRule:
        """The rule for a model whose parameters have these names and `coordinates` in x, integers of
        the parameter's shape, in the order of its layers.

        Raises SpecificationError if it does not fit the model.
        """
        return self

    def personal_parameters(self) -> Tensor | None:
        """[D] true for the parameters that stay with each client, of a rule `for_model`; None if there are
        none. Running statistics of a layer of batch norm stay where its parameters do.
        """
        return None

    def parameters_sent(self, dim: int) -> int:
        """How many of the D = `dim` parameters of x travel in either direction."""
        personal = self.personal_parameters()
        return dim if personal is None else dim - int(personal.sum())

    def models_trained(self) -> int:
        """How many models a client trains; vectors of its training are that many, one after another. The
        server averages the first, and the personal model is made from the last.
        """
        return 1

    def models_kept(self) -> int:
        """How many models the server keeps, k. They are one vector x [k D], one after another, for the
        server's optimiser, the downlink and the direction of the aggregator.

        Each client receives all, and uses the one with the lowest loss over its training samples.
        """
        return 1

    def initial_spread(self) -> float:
        """Standard deviation of the noise by which several models are set apart at the start."""
        return 0.0

    def shares_parameters(self) -> bool:
        """True if several models of the server have some parameters in common."""
        return False

    def with_shared_parameters(self, models: Tensor) -> Tensor:
        """The models [k, D] with the parameters that all have in common set to the first model's."""
        return models

    def parameters_received(self, dim: int) -> int:
        """How many numbers of the server's models of D = `dim` parameters a client receives;
        parameters that the models have in common count once.
        """
        return self.models_kept() * self.parameters_sent(dim)

    def starting_point(self, context: ClientContext) -> Tensor:
        """[..., D'] the vector that local training begins at, by default x.

        A rule whose clients have parameters of their own puts them in the place of x's, and one
        whose clients train a second model appends it, D' = 2 D. Then `context.x` of the other
        methods is this vector, as is the y that they are given.
        """
        return context.x

    def needs_full_gradient(self) -> bool:
        """True if each client computes its full gradient at x before it trains."""
        return False

    def full_gradient_at(self, context: ClientContext) -> Tensor:
        """[D], or [..., D] for models of the clients' own: where full gradients are computed, by
        default x. `context` has none yet.
        """
        return context.x

    def exchanges_gradients(self) -> bool:
        """True if each round begins with an exchange: full gradients up, their weighted mean down.

        Compression then applies to these, and models are sent exactly.
        """
        return False

    def first_exchange(self) -> FirstExchange:
        """The exchange of round 1: compressed like any other, exact, or skipped (mean gradient
        zero).
        """
        return "compressed"

    def subtracts_gradient_at_x(self) -> bool:
        """True if `direction` receives the gradient at y minus that at x, on the same
        mini-batch.
        """
        return False

    def step_size_scale(self, steps: Tensor) -> Tensor | float:
        """Factor of the step size of a client that takes `steps` local steps, [..., 1]."""
        return 1.0

    def needs_normaliser(self) -> bool:
        """True if it reads `ClientContext.normaliser`, which is NaN unless the local optimiser is
        linear: any other is rejected.
        """
        return False

    def gradients_per_step(self) -> int:
        """How many gradients of its mini-batch a local step computes, for estimates of the work."""
        return 1 + self.subtracts_gradient_at_x()

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        """The `grad` [..., D'] of a local step at y [..., D'], for rules that evaluate it elsewhere or
        several times.

        `at` gives the gradients [..., D] of the step's mini-batch at models [..., D]. The first evaluations
        in a step, one for each of the `models_trained` in their order, move the running statistics of
        that model's batch norm; others leave no trace in any. Parameters that stay with the client under
        `batch_norm: local` are trained by the last evaluation that is not at x.
        """
        return at(y)

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        """Direction [..., D] that a local step descends along."""
        return grad

    def step_taken(self, step: Tensor, k: int, context: ClientContext) -> Tensor:
        """The part [..., D] of the optimiser's `step` that is taken as the k-th of the round, from 0."""
        return step

    def affine_form(self) -> AffineForm | None:
        """The form of `direction`, which allows faster engines; None for any other rule.

        Engines rely on it without calling `direction` in each step. A rule with its own `direction`
        declares its form beside it, or is trained step by step.
        """
        return None if _overrides(self, ClientRule, *self.described["affine_form"]) else AffineForm()

    def finish(self, y: Tensor, context: ClientContext) -> ClientUpdate:
        """Message and new memory of the client after its last step."""
        return ClientUpdate(delta=y - context.x)

    def receives_new_model(self) -> bool:
        """True if the cohort receives the next model at the end of the round, and not only when
        a client takes part again.
        """
        return False

    def update_memory(self, update: ClientUpdate, x: Tensor, context: ClientContext) -> Vectors:
        """The client's memory at the end of a round.

        `update.delta` is the change as the server decoded it, or the exact one if the compressor
        sends the rest later (`Compressor.telescopes`). Memory that must agree with the server's is
        computed here and not in `finish`. `context` is the round's; x [D] is the next model, for
        rules that receive it.
        """
        return update.memory

    def personal_model(self, x: Tensor, memory: Vectors) -> Tensor:
        """The personal models [..., D] of clients with `memory` [..., D] each, given x [D]; [D] if it
        is the same for all.
        """
        return x

    def adaptation(self) -> Adaptation | None:
        """Training of each personal model before it is evaluated; None if there is none."""
        return None

    def update_shared(self, shared: Vectors, sent: Vectors, cohort: Cohort) -> Vectors:
        """The shared vectors [D] after the server has received `sent` [M, D]."""
        return shared

    def adaptive_parameters(self) -> Mapping[str, float]:
        """Initial values of the parameters that the server adapts after each round.

        If there are none, training losses are not computed.
        """
        return {}

    def with_parameters(self, parameters: Mapping[str, float]) -> ClientRule:
        """The rule of a round with the adapted `parameters`."""
        return self

    def adapt_parameters(self, parameters: Mapping[str, float], loss: float) -> Mapping[str, float]:
        """The parameters after a round that led to a model with training loss f(x) = `loss`.

        The first call is given the loss of the first model.
        """
        return parameters


@dataclass(frozen=True)
class Solver(Declaring):
    """The local optimiser; by default gradient descent: y <- y - eta_k d.

    d is the client's `direction`. Its state is new in every round, so nothing of it is kept between
    rounds. Written for one client [D], it serves a cohort [M, D] too.
    """

    assures: ClassVar[Assurances] = frozenset({Assurance.OWN_DATA, Assurance.NOISY_GRADIENTS})
    """Statements about privacy; see `ClientRule.assures`."""
    described: ClassVar[Described] = {
        "momentum_form": ("step", "direction", "descend"),
        "is_linear": ("step", "direction", "descend", "momentum_form"),
    }

    weight_decay: float = 0.0
    """Adds weight_decay y to each gradient."""
    prox_mu: float = 0.0
    """Adds prox_mu (y - x) to each direction of the rule."""
    clip_norm: float | None = None
    """Largest norm of a direction."""

    def start(self) -> Mapping[str, float]:
        """Names of a client's state vectors, with the initial value of every entry in each round."""
        return {}

    def step(self, direction: Tensor, y: Tensor, state: Vectors, k: int) -> tuple[Tensor, Vectors]:
        """The step v [..., D] of y <- y - eta_k v, and the new state.

        `direction` [..., D] is d after clipping; k counts the local steps of the round from 0.
        """
        return direction, state

    def momentum_form(self) -> float | None:
        """rho if `step` is v <- rho v + d, which allows faster engines; None for any other step."""
        return None if _overrides(self, Solver, *self.described["momentum_form"]) else 0.0

    def is_linear(self) -> bool:
        """True if y - x is linear in the gradients, so that the normaliser ||a_i||_1 exists
        (FedNova, Section III).
        """
        return self.clip_norm is None and self.momentum_form() is not None

    def direction(self, rule: ClientRule, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        """The vector d [..., D] that the optimiser descends along, before clipping: the rule's
        direction at g + weight_decay y, and prox_mu (y - x).
        """
        if self.weight_decay:
            grad = grad + self.weight_decay * y
        direction = rule.direction(grad, y, context)
        if self.prox_mu:
            direction = direction + self.prox_mu * (y - context.x)
        return direction

    def descend(
        self, rule: ClientRule, grad: Tensor, y: Tensor, state: Vectors, k: int, context: ClientContext
    ) -> tuple[Tensor, Vectors]:
        """The `step` along d min(1, clip_norm / (|d| + 1e-6)), as `torch.nn.utils.clip_grad_norm_`
        clips, and the new state.
        """
        direction = self.direction(rule, grad, y, context)
        if self.clip_norm is not None:
            models = rule.models_trained()
            # Each model by itself, as if the others were not there.
            parts = direction if models == 1 else direction.reshape(*direction.shape[:-1], models, -1)
            norm = parts.norm(dim=-1, keepdim=True)
            parts = parts * (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
            direction = parts if models == 1 else parts.flatten(-2)
        step, state = self.step(direction, y, state, k)
        return rule.step_taken(step, k, context), state


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Result of aggregating a round."""

    direction: Tensor
    """[D] x + direction is where plain averaging would put the server; [k D] of several models."""
    coefficients: Tensor
    """[M] the coefficient of each client's delta in the direction; NaN if there is no single one."""
    aggregator_state: Vectors
    """The new state of the aggregator."""
    dropped: Tensor | None = None
    """[M] true for clients whose change was left out since it is not finite; None if the aggregator
    leaves none out.
    """


@dataclass(frozen=True)
class Aggregator:
    """Combines the deltas of a cohort into one direction; by default their weighted mean.

    An aggregator that needs only weighted sums of the deltas declares them: deltas are then summed
    as clients train, and never stored.
    """

    assures: ClassVar[Assurances] = frozenset({Assurance.CHANGE_ALONE, Assurance.NOISY_GRADIENTS})
    """Statements about privacy, see `ClientRule.assures`; `needs_losses` need not be taken out."""

    def for_model(self, coordinates: Mapping[str, Tensor]) -> Aggregator:
        """The aggregator for a model with these `coordinates`; see `ClientRule.for_model`."""
        return self

    def start(self, x: Tensor) -> Vectors:
        """State before the first round, of the type and on the device of x [D]."""
        return {}

    def vectors_kept(self) -> tuple[int, int]:
        """Number of vectors [D] in the state: for the server, and per client that has taken
        part.
        """
        return 0, 0

    def needs_normaliser(self) -> bool:
        """True if it reads `Cohort.normaliser`; see `ClientRule.needs_normaliser`."""
        return False

    def needs_order(self) -> bool:
        """True if it reads `Cohort.order`."""
        return False

    def needs_losses(self) -> bool:
        """True if it reads `Cohort.losses`: each client then sends its loss, one number more."""
        return False

    def coefficients(self, cohort: Cohort) -> Tensor:
        """c_i [M]: coefficients of the deltas in the direction, if they do not depend on the
        deltas.
        """
        return cohort.weights

    def weighted_sums(self, cohort: Cohort) -> Tensor | None:
        """[K, M]: weights of the K sums of deltas that `combine` needs; None if it needs each
        delta.
        """
        return self.coefficients(cohort)[None]

    def of_round(self, seed: int, round: int) -> Aggregator:
        """The aggregator of a round, counted from 1. An aggregator that draws random numbers takes
        them from streams keyed by `seed` and `round`.
        """
        return self

    def drops_changes(self) -> bool:
        """True if it leaves out changes that are not finite, and says which in `Aggregate.dropped`.

        All that such a client sent is then left out, and the client keeps the memory it had.
        """
        return False

    def moves_alone(self) -> bool:
        """True if the model changes even in a round that no client reaches: `combine` is then given
        a cohort of none.
        """
        return False

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        """Combine the sums [K, D], or each delta [M, D]; by default sum_i c_i delta_i."""
        return Aggregate(seen[0], self.coefficients(cohort), aggregator_state)


@dataclass(frozen=True)
class ServerOptimiser:
    """The server's step along the direction; by default SGD: x <- x + lr direction."""

    lr: float = 1.0

    def start(self) -> Mapping[str, float]:
        """Names of the state vectors, with the initial value of every entry."""
        return {}

    def step(self, direction: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        """The change of x [D], and the new state."""
        return self.lr * direction, state


@dataclass(frozen=True)
class Compressor(Declaring):
    """Compression of a message [..., D]; by default none."""

    assures: ClassVar[Assurances] = frozenset({Assurance.AS_CLIPPED, Assurance.NOISY_GRADIENTS})
    """Statements about privacy; see `ClientRule.assures`."""
    described: ClassVar[Described] = {"telescopes": ("feed_back",)}

    error_feedback: bool = False

    def sample(self, rng: Generator, dim: int) -> NDArray[Any] | None:
        """Random numbers for compressing one message of D = `dim` numbers, from its own stream;
        None if compression is deterministic.
        """
        return None

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        """The message as the receiver decodes it, [..., D].

        `drawn` [..., *] holds the random numbers that `sample` returned for each message.
        """
        return message

    def feed_back(self, message: Tensor, residual: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """With error feedback: the message [..., D] as the receiver decodes it, and what the sender
        keeps for its next message in place of `residual` [..., D]. By default h = C(rho + m),
        rho <- rho + m - h.
        """
        message = message + residual
        received = self.compress(message, drawn)
        return received, message - received

    def telescopes(self) -> bool:
        """True if what a message leaves out is sent later: the messages received so far and what
        the sender keeps add up to the messages that were meant.

        Clients then settle their memory with the message they meant, else with what was received. A
        compressor with its own `feed_back` declares it beside it.
        """
        return self.error_feedback and not _overrides(self, Compressor, "feed_back")

    def message_bytes(self, dim: int, word: int) -> int:
        """Bytes on the wire for one message of D = `dim` numbers of `word` bytes."""
        return dim * word


def models_bytes(rule: ClientRule, downlink: Compressor, dim: int, word: int) -> int:
    """Bytes of a message of all models of the server, of D = `dim` numbers of `word` bytes each.

    Each is compressed by itself. Parts that they have in common are sent once, never compressed.
    """
    if downlink == Compressor():
        return downlink.message_bytes(rule.parameters_received(dim), word)
    return rule.models_kept() * downlink.message_bytes(rule.parameters_sent(dim), word)


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: four independent choices and the local solver."""

    rule: ClientRule = ClientRule()
    aggregator: Aggregator = Aggregator()
    server: ServerOptimiser = ServerOptimiser()
    solver: Solver = Solver()
    uplink: Compressor = Compressor()
    downlink: Compressor = Compressor()

    def starts_at_x(self) -> bool:
        """True if all clients begin their local training at x."""
        return type(self.rule).starting_point is ClientRule.starting_point

    def is_affine(self) -> bool:
        """True if local training is the recursion v <- rho v + g + mu (y - x) + offset,
        y <- y - eta v, which allows faster engines.
        """
        solver = self.solver
        return (
            self.rule.affine_form() is not None
            and solver.momentum_form() is not None
            and solver.clip_norm is None
        )
