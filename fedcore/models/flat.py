"""theta [D] <-> the named parameters of a module."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class _Block(NamedTuple):
    """A stretch of theta: one parameter, or a linear layer as [out, in + 1], each row its weights and then its bias."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def split(self, part: Tensor) -> tuple[Tensor, ...]:
        """The parameters [..., *shape] in `part` [..., size], as views."""
        whole = part.view(*part.shape[:-1], *self.shape)
        return (whole,) if len(self.names) == 1 else (whole[..., :-1], whole[..., -1])


class Layout:
    """Where each parameter of a module lies in the flat vector.

    Parameters follow the module's order, row-major; a linear layer's bias lies beside its weights, row by row, so that the layer
    and its gradient are one matrix each.
    """

    def __init__(self, module: nn.Module) -> None:
        """Read the names and shapes of `module`."""
        self._blocks = _blocks(module)
        self.shapes = [block.shape for block in self._blocks]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.dim = sum(self.sizes)

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """Views of `theta` [..., D] by name, each [..., *shape]."""
        parts = zip(self._blocks, torch.split(theta, self.sizes, dim=-1), strict=True)
        return {name: view for block, part in parts for name, view in zip(block.names, block.split(part), strict=True)}

    def flat(self, module: nn.Module) -> Tensor:
        """A copy of the parameters of `module` as one vector [D]."""
        theta = next(module.parameters()).new_empty(self.dim)
        for name, view in self.named(theta).items():
            view.copy_(module.get_parameter(name).detach())
        return theta


def _blocks(module: nn.Module) -> list[_Block]:
    blocks: list[_Block] = []
    for prefix, child in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        if isinstance(child, nn.Linear) and child.bias is not None:
            blocks.append(_Block((child.out_features, child.in_features + 1), (f"{dot}weight", f"{dot}bias")))
        else:
            own = child.named_parameters(recurse=False)
            blocks += [_Block(tuple(parameter.shape), (dot + name,)) for name, parameter in own]
    return blocks
