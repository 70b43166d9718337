"""The loss of an objective, of the outputs of networks: what `fedcore.core.Objective` is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, get_args

import torch
from torch import Tensor

from fedcore.core import Objective, OtherModel, Outputs, View
from fedcore.models.forward import BatchStatistics
from fedcore.problems.gradients import Automatic

OTHERS: Final[tuple[OtherModel, ...]] = get_args(OtherModel)
COUNTS = "class counts"
"""Name in the view of a client; those of other models and of their running statistics are below."""


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

    def value(self, outputs: Outputs, labels: Tensor, view: View) -> Tensor:
        """The weighted sum of the losses of samples.

        Raises TypeError if the objective returns anything but a loss for each sample.
        """
        losses = self.objective.loss(outputs, labels, view)
        if losses.shape != view.weights.shape:
            raise TypeError(
                f"{type(self.objective).__name__}.loss returned {list(losses.shape)}, not the loss of each of"
                f" the {len(view.weights)} samples of a mini-batch"
            )
        return losses @ view.weights
