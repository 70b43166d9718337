"""theta [D] <-> the named parameters of a module."""

from collections.abc import Collection
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class _Block(NamedTuple):
    """A stretch of theta: one parameter, or a linear layer as [out, in + 1], each row its weights
    and then its bias.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def split(self, part: Tensor) -> tuple[Tensor, ...]:
        """The parameters [..., *shape] in `part` [..., size], as views."""
        whole = part.view(*part.shape[:-1], *self.shape)
        return (whole,) if len(self.names) == 1 else (whole[..., :-1], whole[..., -1])


class Layout:
    """Where each trained parameter of a module lies in the flat vector: in the module's order,
    row-major. Parameters without `requires_grad` are constants of the module.

    In a fully connected module each bias lies beside its weights, row by row, so that a layer and
    its gradient are one matrix each. Elsewhere that would only cost copies: a convolutional
    network's step would take 1.6 times as long.
    """

    def __init__(self, module: nn.Module, names: Collection[str] | None = None) -> None:
        """Read the names and shapes of `module`: of the trained parameters `names`, by default all."""
        self.depth = _depth(module) if names is None else 0
        self._blocks = _joined(module) if self.depth else _separate(module, names)
        self.shapes = [block.shape for block in self._blocks]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.dim = sum(self.sizes)

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """Views of `theta` [..., D] by name, each [..., *shape]."""
        parts = zip(self._blocks, torch.split(theta, self.sizes, dim=-1), strict=True)
        return {
            name: view
            for block, part in parts
            for name, view in zip(block.names, block.split(part), strict=True)
        }

    def of_vector(self, theta: Tensor) -> dict[str, Tensor]:
        """The tensors of `named` that are views of `theta`: here all."""
        return self.named(theta)

    def flat(self, module: nn.Module) -> Tensor:
        """A copy of the parameters of `module` as one vector [D]."""
        theta = next(module.parameters()).new_empty(self.dim)
        for name, view in self.named(theta).items():
            view.copy_(module.get_parameter(name).detach())
        return theta


def _depth(module: nn.Module) -> int:
    """How many linear layers with ReLU between them a module consists of; 0 if it is anything
    else.
    """
    kinds = [type(layer) for layer in module.children()]
    layers = len(kinds) // 2
    dense = (
        type(module) is nn.Sequential
        and not has_hooks(module)
        and kinds == [nn.Flatten, *[nn.Linear, nn.ReLU] * layers][:-1]
    )
    biased = all(layer.bias is not None for layer in module.children() if isinstance(layer, nn.Linear))
    trained = all(parameter.requires_grad for parameter in module.parameters())
    return layers if dense and biased and trained else 0


def has_hooks(module: nn.Module) -> bool:
    """True if functions of the user are called before or behind layers."""
    # There is no public way to ask.
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())  # noqa: SLF001


def _joined(module: nn.Module) -> list[_Block]:
    layers = [(name, layer) for name, layer in module.named_children() if isinstance(layer, nn.Linear)]
    return [
        _Block((layer.out_features, layer.in_features + 1), (f"{name}.weight", f"{name}.bias"))
        for name, layer in layers
    ]


def _separate(module: nn.Module, names: Collection[str] | None) -> list[_Block]:
    return [
        _Block(tuple(parameter.shape), (name,))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and (names is None or name in names)
    ]
