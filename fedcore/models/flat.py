"""theta [D] <-> the named parameters of a module."""

from math import prod

import torch
from torch import Tensor, nn


class Layout:
    """Where each parameter of a module lies in the flat vector: in the module's own order, row-major."""

    def __init__(self, module: nn.Module) -> None:
        """Read the names and shapes of `module`."""
        self.shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        self.sizes = [prod(shape) for shape in self.shapes.values()]
        self.dim = sum(self.sizes)

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """Views of `theta` [..., D] by name, each [..., *shape]."""
        parts = theta.split(self.sizes, dim=-1)
        return {name: part.unflatten(-1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def flat(self, module: nn.Module) -> Tensor:
        """The parameters of `module` as one vector [D]."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
