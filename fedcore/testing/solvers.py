"""Checks of local optimisers, schedules of the step size, and losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedcore.core import Solver
from fedcore.engine.local_solver import initial_state
from fedcore.spec import ExperimentSpec
from fedcore.testing import runs
from fedcore.testing.finding import require
from fedcore.testing.subject import EXACT, SAMPLED, Subject

CLIENTS, DIM, STEPS = 3, 5, 4
CLASSES, SAMPLES = 4, 6


def a_client_steps_the_same_alone_and_in_a_cohort(subject: Subject) -> None:
    """A step for a cohort [M, D] is the step of each of its clients [D]."""
    solver = subject.spec().build()
    start, directions = _normal(CLIENTS, DIM), _normal(STEPS, CLIENTS, DIM, seed=1)
    together = _descent(solver, start, directions)
    alone = torch.stack([_descent(solver, start[i], directions[:, i]) for i in range(CLIENTS)])
    require(
        together.shape == start.shape and torch.allclose(together, alone, rtol=0, atol=1e-12),
        "the same steps for one client [D] and in a cohort [M, D]",
        f"{list(together.shape)} that differ by {float((together - alone).abs().max()):.3g}"
        if together.shape == start.shape
        else f"steps of shape {list(together.shape)}",
        "a reduction over all axes; reduce over dim=-1 and keep the dimension",
        solver.step,
    )


def a_declared_momentum_form_is_that_of_the_steps(subject: Subject) -> None:
    """Where `momentum_form` is a number rho, the steps are v <- rho v + d, as faster engines take
    them.
    """
    solver = subject.spec().build()
    rho = solver.momentum_form()
    if rho is None:
        return
    state, velocity = initial_state(solver, _normal(DIM)), torch.zeros(DIM, dtype=torch.float64)
    for k, direction in enumerate(_normal(STEPS, DIM, seed=1)):
        step, state = solver.step(direction, _normal(DIM), state, k)
        velocity = rho * velocity + direction
        require(
            torch.allclose(step, velocity, rtol=0, atol=1e-12),
            f"the steps v <- {rho:g} v + d that `momentum_form` declares",
            f"a difference of {float((step - velocity).abs().max()):.3g} in step {k}",
            "a `momentum_form` inherited from a class with other steps; return None",
            solver.momentum_form,
        )


def a_declared_linearity_is_that_of_the_steps(subject: Subject) -> None:
    """Where `is_linear` is true, twice the directions lead twice as far."""
    solver = subject.spec().build()
    if not solver.is_linear():
        return
    start, directions = torch.zeros(DIM, dtype=torch.float64), _normal(STEPS, DIM, seed=1)
    once, twice = (_descent(solver, start, scale * directions) for scale in (1, 2))
    require(
        torch.allclose(2 * once, twice, rtol=1e-12, atol=1e-12),
        "a change that is linear in the gradients, as `is_linear` declares",
        f"a difference of {float((2 * once - twice).abs().max()):.3g} for twice the gradients",
        "a step that normalises or truncates; let `is_linear` return False",
        solver.is_linear,
    )


def step_sizes_are_positive_numbers(subject: Subject) -> None:
    """Step sizes of all rounds are finite, not negative, the same one by one and together, and equal
    for equal rounds.
    """
    schedule, rounds = subject.spec(), 10
    for round in range(1, rounds + 1):
        sizes = schedule.sizes(0.1, round, rounds, STEPS * (round - 1))
        found = sizes.first_of(STEPS).tolist()
        require(
            found == [sizes[k] for k in range(STEPS)] and all(0 <= size < float("inf") for size in found),
            "finite step sizes, `first_of(steps)` being those of `[k]`",
            f"{found} and {[sizes[k] for k in range(STEPS)]} in round {round}",
            "a subclass of StepSizes that overrides one and not the other",
            schedule.sizes,
        )
        require(
            sizes == schedule.sizes(0.1, round, rounds, STEPS * (round - 1))
            and hash(sizes) == hash(schedule.sizes(0.1, round, rounds, STEPS * (round - 1))),
            "equal step sizes for the same round",
            f"others, or no hash, in round {round}",
            "StepSizes is compared by value: make a subclass a frozen dataclass",
            schedule.sizes,
        )


def a_declared_residual_is_the_gradient(subject: Subject) -> None:
    """With `has_residual`, the gradient over the scores is `predict` - `targets`."""
    loss, (scores, labels) = subject.spec(), _scores()
    if not loss.has_residual:
        return
    expected = _gradient(loss, scores, labels)
    found = loss.predict(scores.mT).mT - loss.targets(labels, CLASSES, scores.dtype)
    require(
        torch.allclose(found, expected, rtol=0, atol=1e-12),
        "predict(scores) - targets(labels) to be the gradient of per_sample",
        f"a difference of {float((found - expected).abs().max()):.3g}",
        "another gradient than prediction - target: leave `has_residual` False",
        loss.predict,
    )


def a_loss_is_per_sample(subject: Subject) -> None:
    """The loss of a sample does not depend on the others, in a batch and under `torch.func.vmap`;
    `total` is the sum.
    """
    loss, (scores, labels) = subject.spec(), _scores()
    values = loss.per_sample(scores, labels)
    alone = torch.cat([loss.per_sample(scores[i : i + 1], labels[i : i + 1]) for i in range(SAMPLES)])
    require(
        values.shape == (SAMPLES,) and torch.allclose(values, alone, rtol=1e-12, atol=1e-12),
        f"losses [{SAMPLES}] of {SAMPLES} samples, each of its own",
        f"a tensor {list(values.shape)}, or others for each sample alone",
        "a mean over the batch; return one value per sample, as with reduction='none'",
        loss.per_sample,
    )
    total = float(loss.total(scores, labels))
    require(
        abs(total - float(values.sum())) <= 1e-9 * max(1.0, abs(total)),
        "`total` to be the sum of the losses",
        f"{total:g} instead of {float(values.sum()):g}",
        "a `total` of another loss; leave it out, it is the sum",
        loss.total,
    )
    stacked = vmap(grad(lambda s, t: loss.per_sample(s, t).sum()))(scores[None], labels[None])[0]
    require(
        torch.allclose(stacked, _gradient(loss, scores, labels), rtol=0, atol=1e-12),
        "the same gradient for several clients by torch.func.vmap",
        "another one",
        "operations in place, or that read values (`.item()`, `if` of a tensor)",
        loss.per_sample,
    )


def engines_agree_with_it(subject: Subject) -> None:
    """All engines agree to 1e-9 with the component in the run."""
    runs.engines_agree(partial(_within, subject, SAMPLED))


def a_run_with_it_resumes_at_every_round(subject: Subject) -> None:
    """From the checkpoint of any round a run goes on with the same bits."""
    runs.resumes_at_every_round(partial(_within, subject, SAMPLED))


def randomness_of_it_is_keyed(subject: Subject) -> None:
    """A run draws from no global random generator."""
    runs.uses_keyed_randomness(subject, partial(_within, subject, SAMPLED))


def a_run_with_it_stays_finite(subject: Subject) -> None:
    """A run on strongly convex quadratics does not diverge."""
    runs.stays_finite(partial(_within, subject, EXACT))


def _within(subject: Subject, base: dict[str, Any], **changes: Any) -> ExperimentSpec:
    """The experiment with the component, and with a step size where it is not the component's."""
    spec = subject.spec()
    if subject.family == "losses":
        return subject.experiment(base, "problem.loss", **changes)
    path = {"local_optimisers": "local.optimizer", "lr_schedules": "local.lr_schedule"}[subject.family]
    given = getattr(spec, "lr", None) is not None or getattr(spec, "sets_lr", False)
    local = {name: value for name, value in base["local"].items() if name not in ("lr", "optimizer")}
    return subject.experiment(base, path, local=local | ({} if given else {"lr": 0.01}), **changes)


def _descent(solver: Solver, y: Tensor, directions: Tensor) -> Tensor:
    """y after steps of size 0.1 along the `directions` [S, ..., D]."""
    state = initial_state(solver, y)
    for k, direction in enumerate(directions):
        step, state = solver.step(direction, y, state, k)
        y = y - 0.1 * step
    return y


def _scores() -> tuple[Tensor, Tensor]:
    return _normal(SAMPLES, CLASSES), torch.arange(SAMPLES) % CLASSES


def _gradient(loss: Any, scores: Tensor, labels: Tensor) -> Tensor:
    at = scores.clone().requires_grad_()
    return torch.autograd.grad(loss.per_sample(at, labels).sum(), at)[0]


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_RUNS = (engines_agree_with_it, a_run_with_it_resumes_at_every_round, randomness_of_it_is_keyed)
LOCAL_OPTIMISER = (
    a_client_steps_the_same_alone_and_in_a_cohort,
    a_declared_momentum_form_is_that_of_the_steps,
    a_declared_linearity_is_that_of_the_steps,
    *_RUNS,
    a_run_with_it_stays_finite,
)
LR_SCHEDULE = (step_sizes_are_positive_numbers, *_RUNS, a_run_with_it_stays_finite)
LOSS = (a_loss_is_per_sample, a_declared_residual_is_the_gradient, *_RUNS)
