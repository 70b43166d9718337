"""The loss of an objective, of the outputs of networks: what `fedcore.core.Objective` is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast, get_args

import torch
from torch import Tensor

from fedcore.core import Objective, OtherModel, Outputs, Vectors, View
from fedcore.data.federated import Samples
from fedcore.errors import SpecificationError
from fedcore.models.forward import BatchStatistics
from fedcore.problems.gradients import Automatic

OTHERS: Final[tuple[OtherModel, ...]] = get_args(OtherModel)
COUNTS = "class counts"
"""Name in the view of a client; those of other models and of their running statistics are below."""


def shared_as(name: str) -> str:
    """The name of a shared tensor in the view of a client."""
    return f"shared {name}"


def statistics_of(model: OtherModel) -> str:
    """The name of another model's running statistics in the view of a client."""
    return f"{model} statistics"


InTraining = Callable[[Tensor, Tensor], tuple[Outputs, Tensor]]
"""A pass in training of a model [P] with running statistics [S]: its outputs, and the new statistics."""


@dataclass(frozen=True)
class ObjectiveLoss:
    """An objective with the module, in evaluation, that other models are seen through."""

    objective: Objective
    module: Automatic
    norms: BatchStatistics
    layer: str | None
    """The layer whose input is read; None if none is."""

    def replica(self) -> ObjectiveLoss:
        """A copy for another thread."""
        return replace(self, module=self.module.replica())

    def others(
        self, features: Tensor, view: Mapping[str, Tensor], in_training: InTraining
    ) -> Mapping[str, Outputs]:
        """The outputs of the other models that are read for `features` [B, ...], without gradients."""
        found: dict[str, Outputs] = {}
        with torch.no_grad():
            for name in OTHERS:
                if name not in self.objective.reads:
                    continue
                model, statistics = view[name], view[statistics_of(name)]
                if self.objective.others_train:
                    found[name], _ = in_training(model, statistics)
                else:
                    buffers = self.norms.named(statistics) if len(self.norms) else {}
                    found[name] = self.module.outputs(model, features, self.layer, buffers)
        return found

    def report(self, z: Tensor, samples: Samples, statistics: Tensor) -> Vectors:
        """The report on samples of the model z [P] with running `statistics` [S]."""
        buffers = self.norms.named(statistics) if len(self.norms) else {}
        outputs = self.module.outputs(z, samples.features, self.layer, buffers)
        weights = z.new_ones(len(samples))
        return self.objective.report(
            outputs, samples.labels, View(self.module.per_sample, weights, None, weights[:, None][:, :0])
        )

    def value(self, outputs: Outputs, labels: Tensor, view: View) -> Tensor:
        """The weighted sum of the losses of samples.

        Raises TypeError if the objective returns anything but a loss for each sample.
        """
        losses: object = self.objective.loss(outputs, labels, view)
        if not isinstance(losses, Tensor) or losses.shape != view.weights.shape:
            found = list(losses.shape) if isinstance(losses, Tensor) else repr(losses)
            raise TypeError(
                f"{type(self.objective).__name__}.loss returned {found}, not the loss of each of the"
                f" {len(view.weights)} samples of a mini-batch"
            )
        return losses.to(view.weights.dtype) @ view.weights


class TriedObjective(ObjectiveLoss):
    """An objective on its first mini-batch, before anything is trained."""

    def value(self, outputs: Outputs, labels: Tensor, view: View) -> Tensor:
        """The value, of an objective that is fit to be trained.

        Raises SpecificationError for one that is not.
        """
        name, given = type(self.objective).__name__, list(_tensors(outputs, labels, view))
        if outputs.inputs is not None:
            _check_features(outputs.inputs, len(labels), self.layer)
        before, state = [tensor.detach().clone() for tensor in given], torch.get_rng_state()
        value = super().value(outputs, labels, view)
        if not torch.equal(state, torch.get_rng_state()):
            raise SpecificationError(
                "/algorithm",
                f"{name}.loss draws from PyTorch's generator, so that no run could be repeated: state"
                " `random_numbers`, and use `view.drawn`",
            )
        if not all(torch.equal(tensor, earlier) for tensor, earlier in zip(given, before, strict=True)):
            raise SpecificationError(
                "/algorithm", f"{name}.loss changes a tensor in place that it was given: make a new one"
            )
        if not value.requires_grad:
            raise SpecificationError(
                "/algorithm",
                f"{name}.loss depends on no parameter that is trained: no gradient comes through"
                " `torch.no_grad()`, `.detach()` or numbers taken from tensors",
            )
        return value


def check_report(objective: Objective, whole: Vectors, *parts: Vectors) -> Mapping[str, tuple[int, ...]]:
    """The shapes of what is reported of some samples, given the reports on all parts of them.

    Raises SpecificationError if that is not what `shared` names, or no sum over samples.
    """
    name = type(objective).__name__
    for report in (whole, *parts):
        names = sorted(report) if isinstance(cast("object", report), Mapping) else repr(report)
        if names != sorted(objective.shared):
            raise SpecificationError(
                "/algorithm", f"{name}.report gives {names}, and `shared` names {sorted(objective.shared)}"
            )
    for one, value in whole.items():
        each = [report[one] for report in parts]
        alike = {part.shape for part in each} == {value.shape}
        if not alike or not torch.allclose(torch.stack(each).sum(0), value, rtol=1e-3, atol=1e-5):
            raise SpecificationError(
                "/algorithm",
                f"{name}.report gives {one!r}, which is no sum over samples: that of three samples is not the"
                " sum of those of two and of one; of a mean, report the sum and the number of samples",
            )
    return {one: tuple(value.shape) for one, value in whole.items()}


def _tensors(outputs: Outputs, labels: Tensor, view: View) -> Iterator[Tensor]:
    counts = [] if view.counts is None else [view.counts]
    yield from (labels, view.weights, view.numbers, *counts)
    for one in (outputs, *outputs.others.values()):
        yield from (one.scores, *([] if one.inputs is None else [one.inputs]))


def _check_features(features: Tensor, samples: int, layer: str | None) -> None:
    if features.shape[0] != samples:
        raise SpecificationError(
            "/algorithm",
            f"reads the input of the layer {layer!r}, which is {list(features.shape)} for {samples} samples:"
            " name a layer where they are the first axis",
        )
    if not features.requires_grad:
        raise SpecificationError(
            "/algorithm",
            f"reads the input of the layer {layer!r}, which no trained parameter changes: name a later layer,"
            " or take a network with hidden layers",
        )
