"""Losses: per sample, and the residual that backpropagation starts from. A new one needs a place in
LOSSES.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.block import Block
from fedcore.families import Family
from fedcore.lazy import functional, torch

if TYPE_CHECKING:
    from torch import Tensor


class Loss(Block):
    """A loss of scores [B, C] and labels [B]; a subclass needs only `per_sample`.

    F_i is its mean over client i's samples. It is differentiated automatically, for one client or,
    by `torch.func.vmap`, for several.
    """

    source: ClassVar[str | None] = None
    """The publication."""
    takes_real_labels: ClassVar[bool] = False
    """True if labels may be real numbers; they are then [B] for scores [B, 1]."""
    takes_sequences: ClassVar[bool] = False
    """True if labels may be [B, T] for scores [B, T, C]; the loss of a sample is then the mean over its
    labelled symbols.
    """
    has_residual: ClassVar[bool] = False
    """True if the gradient over the scores is `predict` - `targets`, which allows faster gradients
    and the engine `compiled`.
    """

    if TYPE_CHECKING:
        kind: str

    def per_sample(self, scores: Tensor, labels: Tensor) -> Tensor:
        """[B] for scores [B, C] and labels [B]."""
        raise NotImplementedError

    def total(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The sum over B, in double precision."""
        return self.per_sample(scores, labels).double().sum()

    def predict(self, scores: Tensor) -> Tensor:
        """The prediction in the gradient over the scores, prediction - `targets`, samples last:
        [..., C, B].
        """
        raise NotImplementedError

    def targets(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        """The values subtracted from the prediction, [..., C] for labels [...], of type `dtype`."""
        raise NotImplementedError


class CrossEntropy(Loss):
    """-sum_c t_c log softmax(scores)_c, with t the one-hot label.

    For sequences, the mean over the symbols that have a label.

    With label smoothing t = (1 - s) one-hot + s / C, as `torch.nn.CrossEntropyLoss` has it.
    train_loss and test_loss are then smoothed, too.
    """

    source = (
        "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016, Section 7"
        " (label smoothing)"
    )
    example = {"label_smoothing": 0.1}
    takes_sequences = True
    has_residual = True

    kind: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """s: share of the label's weight that is spread over all classes."""

    def per_sample(self, scores: Tensor, labels: Tensor) -> Tensor:
        # One row per label: of sequences, too.
        losses = functional.cross_entropy(
            scores.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=self.label_smoothing
        )
        if labels.dim() == 1:
            return losses
        return losses.view(labels.shape).sum(-1) / (labels >= 0).sum(-1).clamp(min=1)

    def total(self, scores: Tensor, labels: Tensor) -> Tensor:
        if labels.dim() > 1:
            return super().total(scores, labels)
        # Samples last: over ten classes a softmax is then fifteen times as fast on a CPU.
        logs = torch.log_softmax(scores.T.contiguous(), 0)
        found = -logs.gather(0, labels[None]).double().sum()
        if not self.label_smoothing:
            return found
        return (1 - self.label_smoothing) * found - self.label_smoothing * logs.double().mean(0).sum()

    def predict(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -2)

    def targets(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        found = _one_hot(labels, outputs, dtype)
        if not self.label_smoothing:
            return found
        return found.mul_(1 - self.label_smoothing).add_(self.label_smoothing / outputs)


class SquaredError(Loss):
    """1/2 |scores - t|^2, t the one-hot label, or the label itself where it is a real number."""

    takes_real_labels = True
    has_residual = True

    kind: Literal["squared_error"] = "squared_error"

    def per_sample(self, scores: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (scores - self.targets(labels, scores.shape[-1], scores.dtype)).square().sum(-1)

    def predict(self, scores: Tensor) -> Tensor:
        return scores

    def targets(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        if labels.is_floating_point():
            return labels[..., None].to(dtype)
        return _one_hot(labels, outputs, dtype)


def _one_hot(labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
    """[..., C]. `torch.nn.functional.one_hot` reads the values, which `torch.func.vmap` cannot."""
    return (labels[..., None] == torch.arange(outputs, device=labels.device)).to(dtype)


LOSSES = Family("losses", Loss, (CrossEntropy, SquaredError))
AnyLoss = Annotated[Loss, LOSSES]
