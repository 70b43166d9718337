"""Checks of algorithms: rule, aggregator and server optimiser, and the properties they declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.algorithms.aggregators import AggregatorSpec, for_models
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import (
    AffineForm,
    Aggregate,
    Aggregator,
    Algorithm,
    ClientContext,
    Cohort,
    LocalSgd,
    Rule,
    ServerOptimiser,
    Streams,
    Vectors,
)
from fedcore.engine.local_program import LocalProgram
from fedcore.spec import ExperimentSpec
from fedcore.testing import runs, trials
from fedcore.testing.finding import CheckFailedError, require
from fedcore.testing.objectives import (
    NETWORK,
    a_run_with_the_objective_learns,
    the_objective_is_what_it_declares,
)
from fedcore.testing.randomness import no_global_randomness
from fedcore.testing.subject import EXACT, SAMPLED, Subject

DIM, CLIENTS, POPULATION = 5, 3, 7
IN_TRAINING = ("gradient", "direction", "step")
"""Outputs of the shape of what a client trains."""
LOCAL = "write for the last axis: the same line serves one client [D] and a cohort [M, D]"


class Parts(NamedTuple):
    """The parts of an algorithm, and random tensors for them."""

    spec: AlgorithmSpec
    algorithm: Algorithm
    context: ClientContext
    cohort: Cohort
    grad: Tensor
    """[M, D]; [M, m, D] of several models, as all that a client trains."""
    y: Tensor
    """[M, D]."""
    x: Tensor
    """[D]."""
    deltas: Tensor
    """[M, D]."""

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.algorithm.rule

    @property
    def aggregator(self) -> Aggregator:
        """The aggregator."""
        return self.algorithm.aggregator

    @property
    def server(self) -> ServerOptimiser:
        """The server's optimiser."""
        return self.algorithm.server

    @property
    def server_vector(self) -> Tensor:
        """A vector of the server: [D]; [k, D] of several models."""
        kept = self.algorithm.models.kept
        return self.x if kept == 1 else torch.stack([self.x] * kept)

    def combined(self, cohort: Cohort | None = None) -> Aggregate:
        """The first round's result for the deltas, or for the weighted sums of them."""
        aggregator, cohort = self.aggregator, cohort or self.cohort
        sums = aggregator.weighted_sums(cohort)
        seen = self.deltas.clone() if sums is None else sums @ self.deltas
        return aggregator.combine(seen, cohort, aggregator.start(self.server_vector))

    @property
    def seen(self) -> ClientContext:
        """The context as the rule sees it: of one model."""
        return self.program.seen(self.context)

    @property
    def program(self) -> LocalProgram:
        """The training of a client."""
        return LocalProgram(self.algorithm, DIM, private=False)


def parts_of(subject: Subject, device: str = "cpu") -> Parts:
    """The parts of the component, and inputs of a round on random numbers."""
    spec = subject.spec()
    if isinstance(spec, AggregatorSpec):
        plain = parts_with(AlgorithmSpec(kind="plain"), LocalSgd(), device)
        return plain._replace(algorithm=replace(plain.algorithm, aggregator=spec.build()))
    return parts_with(spec, spec.rule(), device)


def parts_with(spec: AlgorithmSpec, rule: Rule, device: str = "cpu") -> Parts:
    """The parts of `spec` with `rule`, and inputs of a round on random numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    named = {
        "first.weight": torch.arange(3, device=device),
        "last.weight": torch.arange(3, DIM, device=device),
    }
    models = spec.models()
    algorithm = Algorithm(
        rule,
        models,
        spec.objective(),
        spec.exchange(),
        spec.tuner(),
        for_models(spec.aggregator(), models),
        spec.server(spec.server_lr),
    ).for_model(named)
    models = algorithm.models
    x = draw(DIM)
    start = {**rule.start(x), **models.start(x)}
    memory = {name: draw(CLIENTS, *start.get(name, x).shape) for name in (*rule.memory, *models.memory)}
    weights = draw(CLIENTS).exp()
    steps = torch.tensor([2.0, 5.0, 1.0], dtype=torch.float64, device=device)
    streams = Streams(0, np.ones(CLIENTS, np.int64), np.array([1, 3, 6]))
    context = ClientContext(
        x=x,
        shared=_Declared("shared", {name: draw(DIM) for name in rule.shared}),
        memory=_Declared("memory", memory),
        full_gradient=draw(CLIENTS, DIM) if models.full_gradient or "full_gradient" in rule.needs() else None,
        mean_gradient=draw(DIM) if algorithm.exchange else None,
        steps=steps[:, None],
        normaliser=1.5 * steps[:, None],
        lr=0.1,
        streams=streams if "random" in rule.needs() else None,
    )
    context = replace(context, x=models.starting_point(x, context.memory))
    trained = x.shape if models.trained == 1 else (models.trained, DIM)
    share = torch.tensor([0.1, 0.2, 0.15], dtype=torch.float64, device=device)
    cohort = Cohort(
        clients=torch.tensor([1, 3, 6], device=device),
        weights=weights / weights.sum(),
        share=share,
        objective=share,
        population=POPULATION,
        steps=steps,
        normaliser=1.5 * steps,
        order=torch.tensor([2, 0, 1], device=device),
        losses=draw(CLIENTS).exp(),
        models=torch.arange(CLIENTS, device=device) % models.kept if models.kept > 1 else None,
    )
    return Parts(
        spec,
        algorithm,
        context,
        cohort,
        draw(CLIENTS, *trained),
        draw(CLIENTS, *trained),
        x,
        draw(CLIENTS, DIM),
    )


class _Declared(dict[str, Tensor]):
    """Vectors by name; one that is not declared is refused with how to declare it."""

    def __init__(self, attribute: str, vectors: Mapping[str, Tensor]) -> None:
        super().__init__(vectors)
        self._attribute = attribute

    def __missing__(self, name: str) -> Tensor:
        raise CheckFailedError(
            f"vectors that `{self._attribute}` declares: {sorted(self)}",
            f"{name!r}, which it does not name",
            f"a name that is not declared; name it in the class: `{self._attribute} = ({name!r},)`",
        )


def exercise(
    parts: Parts,
    after: Callable[[Any], None] = lambda _: None,
    start: Vectors | None = None,
    state: Vectors | None = None,
) -> list[tuple[Any, Any]]:
    """Call each method once on random numbers; return the tensors that they gave, each with its
    method.

    `after` is called with each method, once it has returned. `start` and `state` are the states of
    the aggregator and the server optimiser.
    """
    rule, context, cohort, aggregator = parts.rule, parts.context, parts.cohort, parts.aggregator
    made = list(_client_outputs(parts, parts.grad, parts.y, context, after).values())
    sums = aggregator.weighted_sums(cohort)
    seen = parts.deltas if sums is None else sums @ parts.deltas
    start = aggregator.start(parts.server_vector) if start is None else start
    combined = aggregator.combine(seen, cohort, start)
    after(aggregator.combine)
    sent = parts.program.finish(parts.y, context).shared
    shared = rule.move_shared(context.shared, sent, cohort, combined)
    after(rule.move_shared)
    move, _ = parts.server.step(parts.server_vector, _server_state(parts) if state is None else state)
    after(parts.server.step)
    made += [(vector, rule.move_shared) for vector in shared.values()]
    return [*made, (combined.direction, aggregator.combine), (move, parts.server.step)]


def the_parts_draw_nothing_globally(subject: Subject) -> None:
    """No method draws from a global random generator."""
    with _errors_left_to_others(), no_global_randomness(subject.component):
        exercise(parts_of(subject))


def nothing_is_kept_on_the_parts(subject: Subject) -> None:
    """No method changes its rule, aggregator or server optimiser."""
    parts = parts_of(subject)
    objects = (parts.rule, parts.aggregator, parts.server)
    before = [_state(each) for each in objects]

    def changed(method: Any) -> None:
        for each, held in zip(objects, before, strict=True):
            now = _state(each)
            names = sorted(name for name in held.keys() | now.keys() if held.get(name) != now.get(name))
            require(
                not names,
                f"{type(each).__name__} to stay as it is",
                f"a change of `self.{', self.'.join(names)}`",
                "state that is kept on `self`, which all clients share and checkpoints leave out; return it"
                " as memory of the client or as shared vectors, or as state of the aggregator or server"
                " optimiser",
                method,
            )

    with _errors_left_to_others():
        exercise(parts, changed)


@contextmanager
def _errors_left_to_others() -> Iterator[None]:
    """Pass on what a check has found, and leave errors of other kinds to the checks that follow."""
    try:
        yield
    except CheckFailedError:
        raise
    except Exception:
        return


def _state(part: object) -> dict[str, str]:
    """Attributes of an object, by name, in a form that can be compared; without cached properties."""
    names = [field.name for field in fields(part)] if is_dataclass(part) else []
    held = {**{name: getattr(part, name) for name in names}, **getattr(part, "__dict__", {})}
    cached = {
        name
        for base in type(part).__mro__
        for name, value in vars(base).items()
        if isinstance(value, cached_property)
    }
    return {name: _written(value) for name, value in held.items() if name not in cached}


def _written(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.tolist()}"
    if isinstance(value, Mapping):
        return f"{[(name, _written(each)) for name, each in value.items()]}"
    if isinstance(value, list | tuple | set):
        return f"{[_written(each) for each in value]}"
    return f"{_state(value)}" if is_dataclass(value) else repr(value)


def shapes_hold_for_one_client_and_a_cohort(subject: Subject) -> None:
    """Each method of the rule gives a client of a cohort what it gives that client alone; aggregator
    and server optimiser give vectors [D].
    """
    parts = parts_of(subject)
    context, models = parts.context, parts.algorithm.models
    whole = _client_outputs(parts, parts.grad, parts.y, context)
    start = {**parts.rule.start(parts.x), **models.start(parts.x)}
    shapes = {f"memory {name!r}": tuple(value.shape) for name, value in start.items()}
    shapes |= dict.fromkeys(IN_TRAINING, tuple(parts.y.shape[1:]))
    for row in range(CLIENTS):
        alone = _client_outputs(parts, parts.grad[row], parts.y[row], context.take(row))
        for name, (value, method) in whole.items():
            shape = shapes.get(name, (DIM,))
            _check_shape(name, value, (CLIENTS, *shape), method)
            _check_shape(name, alone[name][0], shape, method)
            off = (value[row] - alone[name][0]).abs().max()
            require(
                off <= 1e-12,
                f"{name} of a client to be the same alone and in a cohort",
                f"a difference of {float(off):.3g}",
                LOCAL,
                method,
            )
    combined, shape = parts.combined(), tuple(parts.server_vector.shape)
    _check_shape("the direction of combine", combined.direction, shape, parts.aggregator.combine)
    _check_shape("the coefficients of combine", combined.coefficients, (CLIENTS,), parts.aggregator.combine)
    move, _ = parts.server.step(combined.direction, _server_state(parts))
    _check_shape("the server's step", move, shape, parts.server.step)


def given_tensors_are_not_changed(subject: Subject) -> None:
    """No method changes a tensor in place that it was given."""
    parts = parts_of(subject)
    context, cohort = parts.context, parts.cohort
    given = {"x": context.x, "y": parts.y, "steps": context.steps, "the cohort's weights": cohort.weights}
    given |= {f"memory {name!r}": vectors for name, vectors in context.memory.items()}
    given |= {f"shared {name!r}": vector for name, vector in context.shared.items()}
    state, start = _server_state(parts), parts.aggregator.start(parts.server_vector)
    given |= {f"the server's {name!r}": vector for name, vector in state.items()}
    given |= {f"the aggregator's {name!r}": value for name, value in start.items()}
    before = {name: value.clone() for name, value in given.items()}

    def changed(method: Any) -> None:
        names = [name for name, value in given.items() if not torch.equal(value, before[name])]
        require(
            not names,
            "tensors that a method is given to stay as they are",
            f"a change of {', '.join(names)}",
            "an operation in place (`add_`, `+=`, `x[...] = `); make a new tensor",
            method,
        )

    with _errors_left_to_others():
        exercise(parts, changed, start, state)


def the_affine_form_is_that_of_direction(subject: Subject) -> None:
    """A declared `affine_form` equals g + mu (y - x) + offset of `direction` on random numbers."""
    parts = parts_of(subject)
    check_affine_form(parts.rule, parts)


def check_affine_form(rule: Rule, parts: Parts) -> None:
    """Raise CheckFailedError if the form that `rule` declares is not that of its direction."""
    declared = rule.affine_form()
    if declared is None:
        return
    found = observed_form(rule, parts)
    require(
        found is not None and abs(found.mu - declared.mu) <= 1e-9 and found.has_offset == declared.has_offset,
        f"direction(g, y) = g + {declared.mu:g} (y - x)" + (" + offset" if declared.has_offset else ""),
        "another form" if found is None else f"mu = {found.mu:g}, offset: {found.has_offset}",
        "`affine_form` is that of another rule; return None unless it is that of `direction` at the gradient",
        rule.affine_form,
    )


def observed_form(rule: Rule, parts: Parts) -> AffineForm | None:
    """The form g + mu (y - x) + offset of a rule's direction on random numbers; None if it has none."""
    context, y = parts.seen, parts.program.first(parts.y)
    if not torch.equal(rule.gradient(_steep, y, context), _steep(y)):
        return None
    at_x = context.x.expand_as(y)
    offset = rule.direction(torch.zeros_like(y), at_x, context)
    mu: float | None = None
    for scale in (1.0, -0.5, 3.0):
        grad, away = scale * parts.program.first(parts.grad), scale * (y - at_x)
        pull = rule.direction(grad, at_x + away, context) - grad - offset
        if mu is None:
            mu = float((pull * away).sum() / away.square().sum())
        if not torch.allclose(pull, mu * away, rtol=0, atol=1e-12):
            return None
    assert mu is not None
    return AffineForm(mu, has_offset=bool(offset.abs().max() > 1e-12))


def declared_sums_and_coefficients_are_those_of_combine(subject: Subject) -> None:
    """At the start, the direction of `combine` is sum_i c_i delta_i with the coefficients it returns,
    also where `combine` is given the weighted sums that are declared.
    """
    parts = parts_of(subject)
    aggregator, cohort, deltas = parts.aggregator, parts.cohort, parts.deltas
    sums = aggregator.weighted_sums(cohort)
    if sums is not None:
        require(
            sums.dim() == 2 and sums.shape[1] == CLIENTS,
            f"weighted_sums of shape [K, M] = [K, {CLIENTS}]",
            f"shape {list(sums.shape)}",
            "a row of weights needs a leading axis: weights[None]",
            aggregator.weighted_sums,
        )
    combined = parts.combined()
    if combined.coefficients.isnan().any():
        return  # undefined, as for a median
    # Each delta moves one of the server's models.
    moved = combined.direction.view(-1, DIM).sum(0)
    off = float((moved - combined.coefficients @ deltas).abs().max())
    require(
        off <= 1e-9 * float(1 + combined.direction.abs().max()),
        "the direction to be sum_i coefficients_i delta_i",
        f"a difference of {off:.3g}",
        "`weighted_sums` declares other weights than `combine` uses; return None from it if `combine` needs"
        " each delta, or NaN as coefficients if the direction is not linear",
        aggregator.weighted_sums if sums is not None else aggregator.combine,
    )


def declared_memory_is_what_is_used(subject: Subject) -> None:
    """Memory, shared vectors and state have the names that are declared, and their number of vectors."""
    parts = parts_of(subject)
    rule, context = parts.rule, parts.context
    models, update = parts.algorithm.models, parts.program.finish(parts.y, context)
    kept = rule.remember(update.delta, update.shared, parts.x, parts.seen)
    _check_names("memory", rule.memory, kept, rule.remember)
    _check_names("memory", models.memory, models.remember(parts.y, context), models.remember)
    _check_names("sent", rule.sent, update.shared, rule.sends)
    combined = parts.combined()
    moved = rule.move_shared(context.shared, update.shared, parts.cohort, combined)
    _check_names("shared", rule.shared, moved, rule.move_shared)
    for part in (rule, models):
        strangers = part.start(parts.x).keys() - set(part.memory)
        require(
            not strangers,
            "`start` to give vectors of the declared memory",
            f"{sorted(strangers)}",
            "`memory` does not name them",
            part.start,
        )
    shapes = [tuple(vector.shape) for vector in combined.aggregator_state.values()]
    found = shapes.count((DIM,)), shapes.count((CLIENTS, DIM))
    require(
        found == parts.aggregator.vectors_kept(),
        f"vectors_kept() = {found}, the vectors [D] and [V, D] in the aggregator's state",
        f"{parts.aggregator.vectors_kept()}",
        "`vectors_kept` is not overridden, or counts vectors that are no longer kept",
        parts.aggregator.vectors_kept,
    )
    _check_names(
        "server",
        tuple(parts.server.start()),
        parts.server.step(parts.server_vector, _server_state(parts))[1],
        parts.server.start,
    )


def declared_properties_hold(subject: Subject) -> None:
    """`gradients_per_step`, `averages_models`, `own_weights` and `min_norm` are what the parts do."""
    parts = parts_of(subject)
    evaluations = _evaluations(parts)
    require(
        parts.rule.gradients_per_step() == evaluations,
        f"gradients_per_step() = {evaluations}, how often `gradient` evaluates its mini-batch",
        f"{parts.rule.gradients_per_step()}",
        "`gradients_per_step` is not overridden beside `gradient`",
        parts.rule.gradients_per_step,
    )
    spec, cohort, deltas = parts.spec, parts.cohort, parts.deltas
    combined = parts.combined()
    if spec.averages_models:
        change = parts.program.first(parts.y - parts.context.x)
        mean = (parts.program.finish(parts.y, parts.context).delta - change).abs().max()
        off = max(float((combined.direction - cohort.weights @ deltas).abs().max()), float(mean))
        require(
            off <= 1e-9,
            "`averages_models`: a direction that is the weighted mean of the clients' changes",
            f"a difference of {off:.3g}",
            "the attribute was inherited from FedAvg",
            subject.component,
        )
    if spec.own_weights:
        reweighted = replace(cohort, weights=cohort.weights.flip(0))
        other = parts.combined(reweighted).direction
        off = float((other - combined.direction).abs().max())
        require(
            off <= 1e-9,
            "`own_weights`: a direction that does not depend on the weights of the cohort",
            f"a change of {off:.3g} under other weights",
            "`combine` uses `cohort.weights`",
            parts.aggregator.combine,
        )
    held = {"clients", "weights"} <= combined.aggregator_state.keys()
    require(
        held or not spec.min_norm,
        "`min_norm`: `clients` [V] and `weights` [V] in the aggregator's state",
        f"{sorted(combined.aggregator_state)}",
        "the attribute is for aggregators of min-norm points",
        subject.component,
    )


def the_work_is_that_of_fedavg(subject: Subject) -> None:
    """Clients, local steps and mini-batches are the same as FedAvg's under the same seed, unless samples are
    pooled.
    """
    made = subject.spec()
    if isinstance(made, AlgorithmSpec) and made.models().pooled:
        return
    base = _sampled(subject)

    def plain(**changes: Any) -> ExperimentSpec:
        return ExperimentSpec.model_validate({**base, **changes})

    runs.does_the_same_work(_on(subject, base), plain)


def the_declared_fixed_point_holds(subject: Subject) -> None:
    """Where a run on quadratics comes to rest, it is at the `fixed_point` that is declared: `the
    optimum`, `the optimum of the uniform sum` or `as fedavg`. Other texts are not checked.
    """
    # That it is missing is a finding of another check.
    declared = re.split(r";|, also ", getattr(subject.component, "fixed_point", ""))[0].strip()
    weighting = subject.component.weighting or "samples"
    targets: dict[str, Callable[[], Tensor | None]] = {
        "the optimum": lambda: runs.optimum(weighting),
        "the optimum of the uniform sum": lambda: runs.optimum("uniform"),
        "as `fedavg`": lambda: runs.rest(
            lambda **changes: ExperimentSpec.model_validate(
                {**EXACT, "participation": {"kind": "full", "weighting": weighting}, **changes}
            )
        ),
    }
    make = _on_quadratics(subject)
    rest = runs.rest(make) if make is not None and declared in targets else None
    if rest is None:
        return
    target = targets[declared]()
    if target is None or rest.shape != target.shape:
        return
    off = float((rest - target).abs().max())
    require(
        off <= runs.AT_REST,
        f"a run on quadratics to come to rest at its `fixed_point`, {declared!r}",
        f"a run at rest {off:.3g} from it",
        "`fixed_point` was copied from another method (one of your own words is not checked), or a"
        " correction has another weight or sign than in the paper",
        subject.component,
    )


def _client_outputs(
    parts: Parts,
    grad: Tensor,
    y: Tensor,
    context: ClientContext,
    after: Callable[[Any], None] = lambda _: None,
) -> Mapping[str, tuple[Tensor, Any]]:
    """Results of rule and models for clients [..., D], by name, each with the method that gave it.

    `after` is called with each method, once it has returned.
    """
    program, rule, models = parts.program, parts.rule, parts.algorithm.models
    seen = program.seen(context)

    def evaluate(model: Tensor, *, evaluation: int, at_x: bool = False) -> Tensor:  # noqa: ARG001 - one
        return _steep(model)

    gradient = program.gradient(evaluate, y, 0, context)
    after(rule.gradient)
    after(models.gradient)
    direction = program.direction(grad, y, context)
    after(rule.direction)
    after(models.direction)
    taken = models.taken(grad, 1, context)
    after(models.taken)
    update = program.finish(y, context)
    after(rule.sends)
    after(models.remember)
    kept = rule.remember(update.delta, update.shared, seen.x, seen)
    after(rule.remember)
    return {
        "gradient": (gradient, rule.gradient),
        "direction": (direction, rule.direction),
        "step": (taken, models.taken),
        "the delta of training": (update.delta, models.remember),
        **{f"memory {name!r}": (value, models.remember) for name, value in update.memory.items()},
        **{f"memory {name!r}": (value, rule.remember) for name, value in kept.items()},
        **{f"sent {name!r}": (value, rule.sends) for name, value in update.shared.items()},
    }


def _steep(models: Tensor) -> Tensor:
    """Gradients of a function that is not quadratic."""
    return 0.5 * models.sin()


def _ascending(subject: Subject) -> Any:
    """The first method that turns a direction around; the class if it is not known."""
    parts = parts_of(subject)
    rule, models, along = parts.rule, parts.algorithm.models, parts.server_vector
    seen, grad = parts.seen, parts.program.first(parts.grad)
    steps: tuple[tuple[Any, Callable[[], Tensor], Tensor], ...] = (
        (rule.direction, lambda: rule.direction(grad, seen.x, seen), grad),
        (models.taken, lambda: models.taken(parts.grad, 0, parts.context), parts.grad),
        (
            parts.aggregator.combine,
            lambda: parts.combined().direction,
            parts.cohort.weights @ parts.deltas,
        ),
        (parts.server.step, lambda: parts.server.step(along, _server_state(parts))[0], along),
    )
    return next((method for method, given, along in steps if (given() * along).sum() < 0), subject.component)


def _evaluations(parts: Parts) -> int:
    """How many gradients the rule takes in a step."""
    count = 0

    def at(models: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return _steep(models)

    parts.rule.gradient(at, parts.program.first(parts.y), parts.seen)
    return count


def _check_shape(name: str, value: Any, shape: tuple[int, ...], method: Any) -> None:
    require(
        isinstance(value, Tensor) and tuple(value.shape) == shape,
        f"{name} of shape {list(shape)}",
        f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}",
        LOCAL,
        method,
    )


def _check_names(what: str, declared: tuple[str, ...], found: Mapping[str, Any], method: Any) -> None:
    require(
        set(declared) == set(found),
        f"the {what} vectors that are declared: {sorted(declared)}",
        f"{sorted(found)}",
        "a name is not declared, or one that is declared is not returned",
        method,
    )


def _server_state(parts: Parts) -> dict[str, Tensor]:
    return {name: torch.full_like(parts.server_vector, value) for name, value in parts.server.start().items()}


def _on(subject: Subject, base: dict[str, Any]) -> runs.Make:
    """Make experiments with the algorithm or aggregator on the problem of `base`."""

    def make(**changes: Any) -> ExperimentSpec:
        return subject.experiment(base, subject.family.removesuffix("s"), **changes)

    return make


def _has_objective(subject: Subject) -> bool:
    return isinstance(spec := subject.spec(), AlgorithmSpec) and spec.objective() is not None


def _on_both(subject: Subject) -> tuple[runs.Make, runs.Make]:
    """Experiments on quadratics, or for objectives on images, and on mini-batches of unequal sizes."""
    return _on(subject, NETWORK if _has_objective(subject) else EXACT), _on(subject, _sampled(subject))


def _sampled(subject: Subject) -> dict[str, Any]:
    """Mini-batches of unequal sizes; for objectives, of a network with features."""
    network = {**SAMPLED, "problem": {**SAMPLED["problem"], "model": NETWORK["problem"]["model"]}}
    return network if _has_objective(subject) else SAMPLED


def _on_quadratics(subject: Subject) -> runs.Make | None:
    """Experiments on quadratics; None for objectives, which are of what networks compute."""
    return None if _has_objective(subject) else _on(subject, EXACT)


_IN_RUNS = trials.checks_in_runs(_on_both)
_ON_QUADRATICS = trials.checks_on_quadratics(_on_quadratics, _ascending)
_OF_STATE = trials.checks_on_quadratics(lambda subject: _on_both(subject)[0])
DECLARATIONS = (
    declared_memory_is_what_is_used,
    the_affine_form_is_that_of_direction,
    declared_sums_and_coefficients_are_those_of_combine,
    declared_properties_hold,
    the_objective_is_what_it_declares,
)
ALGORITHM = (
    the_parts_draw_nothing_globally,
    nothing_is_kept_on_the_parts,
    given_tensors_are_not_changed,
    shapes_hold_for_one_client_and_a_cohort,
    *DECLARATIONS,
    _IN_RUNS.randomness,
    _ON_QUADRATICS.descent,
    a_run_with_the_objective_learns,
    the_declared_fixed_point_holds,
    _IN_RUNS.engines,
    _IN_RUNS.resumption,
    the_work_is_that_of_fedavg,
    _OF_STATE.memory,
)
AGGREGATOR = tuple(
    check
    for check in ALGORITHM
    if check
    not in (
        the_affine_form_is_that_of_direction,
        declared_properties_hold,
        the_objective_is_what_it_declares,
        a_run_with_the_objective_learns,
        the_declared_fixed_point_holds,
    )
)
