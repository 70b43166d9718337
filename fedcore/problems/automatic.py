"""Scores, losses and gradients of any module, by automatic differentiation."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcore.errors import SpecificationError
from fedcore.models.flat import Layout
from fedcore.models.images import channels_last
from fedcore.problems.loss import Loss


class Automatic:
    """A module with its loss, as functions of the flat vector theta [D]."""

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss, *, last: bool = False) -> None:
        """With `last`, images are laid out with channels last."""
        self._module, self._layout, self._loss, self._last = module, layout, loss, last

    def replica(self) -> Automatic:
        """The same for another thread, since a module holds the parameters of a call while it is called. It shares its own tensors.

        Raises SpecificationError for a module that cannot be copied.
        """
        shared = {id(tensor): tensor for tensor in chain(self._module.parameters(), self._module.buffers())}
        try:
            module = deepcopy(self._module, shared)
        except Exception as error:
            detail = f"cannot be copied, as each thread needs a copy ({error}); leave out what cannot, or use `execution.engine: reference`"
            raise SpecificationError("/problem/model", detail) from error
        return Automatic(module, self._layout, self._loss, last=self._last)

    def scores(self, theta: Tensor, features: Tensor) -> Tensor:
        """[B, C] for features [B, ...]."""
        laid = channels_last(features) if self._last else features
        scores: Tensor = functional_call(self._module, self._layout.named(theta), (laid,))
        return scores

    def loss(self, theta: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The sum of the losses of features [B, ...] with labels [B], times weights [B]."""
        return self._loss.per_sample(self.scores(theta, features), labels) @ weights

    def __call__(self, theta: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The gradient of `loss`, [D]."""
        theta = theta.detach().requires_grad_()
        return torch.autograd.grad(self.loss(theta, features, labels, weights), theta)[0]
