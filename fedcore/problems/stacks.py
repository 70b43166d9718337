"""Gradients of several clients' models in one go: batched products for dense layers, `vmap` for the rest."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedcore.data.plan import PADDING
from fedcore.models.flat import Layout
from fedcore.problems.loss import Loss


class Gathered:
    """The samples of a stretch of steps: features [S, m, B, ...], labels and weights [S, m, B]; padding weighs 0."""

    def __init__(self, features: Tensor, labels: Tensor, starts: Tensor, batches: Tensor) -> None:
        """Gather `batches` [m, S, B] of the clients whose samples begin at `starts` [m]; a repeated batch is gathered once."""
        repeats = batches.shape[1] if batches.stride(1) == 0 else 1
        local = (batches[:, :1] if repeats > 1 else batches).to(starts.device).transpose(0, 1)
        real = local != PADDING
        index = local.clamp(min=0) + starts[:, None]
        weights = (real / real.sum(-1, keepdim=True)).to(features.dtype)
        self.features, self.labels, self.weights = (_repeat(part, repeats) for part in (features[index], labels[index], weights))


def _repeat(part: Tensor, times: int) -> Tensor:
    return part if times == 1 else part.expand(times, *part.shape[1:])


class DenseStack:
    """Closed-form gradients of fully connected ReLU layers under a loss whose gradient is prediction - onehot."""

    def __init__(self, gathered: Gathered, layout: Layout, loss: Loss, l2: float) -> None:
        """Per step: inputs [m, B, d], the weighted one-hot labels [m, B, C], and the weights [m, B, 1]."""
        shapes = list(layout.shapes.values())
        self._sizes, self._weight_shapes = layout.sizes, shapes[0::2]
        self._predict, self._l2 = loss.predict, l2
        weights = gathered.weights[..., None]
        targets = nn.functional.one_hot(gathered.labels, shapes[-1][0]) * weights
        self._inputs = gathered.features.flatten(3).unbind(0)
        self._weights, self._targets = weights.unbind(0), targets.unbind(0)

    def gradient(self, theta: Tensor, k: int) -> Tensor:
        m = len(theta)
        parts = theta.split(self._sizes, 1)
        layers = [(w.view(m, *shape), b) for w, b, shape in zip(parts[0::2], parts[1::2], self._weight_shapes, strict=True)]
        hidden = [self._inputs[k][:m]]
        for weight, bias in layers[:-1]:
            hidden.append(torch.baddbmm(bias[:, None], hidden[-1], weight.mT).relu_())
        weight, bias = layers[-1]
        scores = torch.baddbmm(bias[:, None], hidden[-1], weight.mT)
        error = self._predict(scores).mul_(self._weights[k][:m]).sub_(self._targets[k][:m])
        return self._backward(theta, [weight for weight, _ in layers], hidden, error)

    def _backward(self, theta: Tensor, weights: list[Tensor], hidden: list[Tensor], error: Tensor) -> Tensor:
        m, pieces = len(theta), []
        for layer in reversed(range(len(weights))):
            pieces += [error.sum(1), torch.bmm(error.mT, hidden[layer]).view(m, -1)]
            if layer:
                error = torch.bmm(error, weights[layer]).mul_(hidden[layer] > 0)
        gradient = torch.cat(pieces[::-1], 1)
        return gradient.add_(theta, alpha=self._l2) if self._l2 else gradient


class VmapStack:
    """Gradients of any module by `torch.func.vmap` over clients."""

    def __init__(self, gathered: Gathered, loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        """`loss(theta [D], features [B, ...], labels [B], weights [B])` is one client's weighted loss."""
        self._batches = list(zip(gathered.features.unbind(0), gathered.labels.unbind(0), gathered.weights.unbind(0), strict=True))
        self._gradients = vmap(grad(loss))

    def gradient(self, theta: Tensor, k: int) -> Tensor:
        gradients: Tensor = self._gradients(theta, *(part[: len(theta)] for part in self._batches[k]))
        return gradients


def is_dense(module: nn.Module) -> bool:
    """Whether a module is what `DenseStack` computes: linear layers with ReLU between."""
    layers = list(module.children())[1:] if isinstance(module, nn.Sequential) else []
    kinds = [type(layer) for layer in layers]
    alternating = all(first is nn.Linear and second is nn.ReLU for first, second in list(pairwise(kinds))[0::2])
    return bool(kinds) and kinds[-1] is nn.Linear and set(kinds) <= {nn.Linear, nn.ReLU} and alternating
