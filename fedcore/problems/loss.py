"""Losses: per sample, and the residual that back-propagation starts from."""

import torch
from torch import Tensor, nn

from fedcore.spec.model import AnyModel, Linear


class CrossEntropy:
    """-log softmax(scores)[label]."""

    def per_sample(self, scores: Tensor, labels: Tensor) -> Tensor:
        """[B] for scores [B, C] and labels [B]."""
        return nn.functional.cross_entropy(scores, labels, reduction="none")

    def predict(self, scores: Tensor) -> Tensor:
        """What one-hot labels are subtracted from in the gradient over the scores, [..., C]."""
        return torch.softmax(scores, -1)


class SquaredError:
    """1/2 |scores - onehot(label)|^2."""

    def per_sample(self, scores: Tensor, labels: Tensor) -> Tensor:
        """[B] for scores [B, C] and labels [B]."""
        targets = nn.functional.one_hot(labels, scores.shape[-1])
        return 0.5 * (scores - targets).square().sum(-1)

    def predict(self, scores: Tensor) -> Tensor:
        """What one-hot labels are subtracted from in the gradient over the scores, [..., C]."""
        return scores


Loss = CrossEntropy | SquaredError


def loss_of(spec: AnyModel) -> Loss:
    """The loss a model is trained with."""
    return SquaredError() if isinstance(spec, Linear) else CrossEntropy()
