"""Checks of the objectives of algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedcore.core import Objective, OtherModel, Outputs, View
from fedcore.engine.personal import PersonalModels
from fedcore.simulation.simulation import Simulation
from fedcore.testing import runs
from fedcore.testing.finding import require
from fedcore.testing.subject import IMAGES, Document, Subject

SAMPLES, CLASSES, FEATURES = 4, 3, 5
NETWORK: Document = {
    **IMAGES,
    "name": "network",
    "problem": {**IMAGES["problem"], "model": {"kind": "mlp", "hidden": [6]}},
    "rounds": 3,
}
"""A small network on real images: features are not what samples are made of."""


class _Given(NamedTuple):
    outputs: Outputs
    labels: Tensor
    view: View

    def without_last(self) -> _Given:
        """Inputs whose last sample is padding."""
        weights = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64) / 3
        return self._replace(view=replace(self.view, weights=weights))

    def with_another_last(self) -> _Given:
        """Inputs with another last sample."""
        return self._replace(
            outputs=_changed(self.outputs),
            labels=_last(self.labels, (self.labels[-1] + 1) % CLASSES),
            view=replace(self.view, numbers=_last(self.view.numbers, 1 - self.view.numbers[-1])),
        )


def _changed(outputs: Outputs) -> Outputs:
    inputs = outputs.inputs
    return Outputs(
        _last(outputs.scores, 2 - outputs.scores[-1]),
        None if inputs is None else _last(inputs, 1 - 3 * inputs[-1]),
        {name: _changed(other) for name, other in outputs.others.items()},
    )


def _last(values: Tensor, last: Tensor) -> Tensor:
    return torch.cat([values[:-1], last[None]])


def _given(objective: Objective) -> _Given:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def outputs() -> Outputs:
        features = draw(SAMPLES, FEATURES) if "features" in objective.reads else None
        return Outputs(draw(SAMPLES, CLASSES), features)

    others: tuple[OtherModel, ...] = ("global", "previous")
    own = replace(outputs(), others={name: outputs() for name in others if name in objective.reads})
    counts = torch.tensor([5.0, 0.0, 2.0], dtype=torch.float64) if "class_counts" in objective.reads else None
    drawn = torch.rand(SAMPLES, objective.random_numbers, generator=generator, dtype=torch.float64)
    weights, labels = torch.ones(SAMPLES, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    reported = objective.report(outputs(), labels, View(_cross_entropy, weights, None, drawn))
    return _Given(own, labels, View(_cross_entropy, weights / SAMPLES, counts, drawn, reported))


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")


def the_objective_is_what_it_declares(subject: Subject) -> None:
    """An objective gives a finite loss for each sample, of what it states that it reads; a loss depends on no
    padding, and on no other sample unless that is stated.
    """
    objective = subject.spec().objective()
    if objective is None:
        return
    given = _given(objective)
    losses = objective.loss(*given)
    found: Any = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    require(
        isinstance(losses, Tensor) and losses.shape == (SAMPLES,),
        f"the loss of each of {SAMPLES} samples, of shape [{SAMPLES}]",
        f"{found}",
        "a mean over the mini-batch; clients take it themselves",
        objective.loss,
    )
    require(
        bool(losses.isfinite().all()),
        "finite losses of finite scores and features",
        f"{losses.tolist()}",
        "a logarithm or a division of zero, as of a class that a client lacks",
        objective.loss,
    )
    padded = given.without_last()
    _require_same(
        objective,
        padded,
        "a sample whose weight is 0, padding, to change no loss",
        "a sum over the mini-batch that leaves out `view.weights`",
    )
    if not objective.couples_samples:
        _require_same(
            objective,
            given,
            "the loss of a sample to be its own",
            "a mean or a norm over the mini-batch; state `couples_samples = True`",
        )


def _loss_of_clients(simulation: Simulation) -> float:
    """The training loss of the clients' personal models, which is that of the server's if they have none."""
    state, problem = simulation.state, simulation.context.evaluated
    clients = np.arange(len(problem.share))
    models = PersonalModels(simulation.context, state.server, state.table).models(clients).models
    losses = [problem.client_losses(model, clients[[row]])[0] for row, model in enumerate(models)]
    return float(problem.share @ np.array(losses))


def _require_same(objective: Objective, given: _Given, wanted: str, cause: str) -> None:
    before, after = (objective.loss(*each)[:-1] for each in (given, given.with_another_last()))
    off = float((after - before).abs().max())
    require(off <= 1e-9, wanted, f"a difference of {off:.3g}", cause, objective.loss)


def a_run_with_the_objective_learns(subject: Subject) -> None:
    """The training loss of small networks, each client's own, stays finite and falls over ten rounds."""
    if subject.spec().objective() is None:
        return
    spec = subject.experiment(NETWORK, "algorithm", rounds=10)
    before, after = map(_loss_of_clients, (Simulation(spec, 0), runs.finished(spec, 0)))
    require(
        after < before,
        f"a training loss below {before:.4g}, that of the first model, after ten rounds",
        f"{after:.4g}",
        "a sign in the objective, which clients descend; or a term much larger than the loss: give an"
        " `example` in which it is not",
        subject.component,
    )
