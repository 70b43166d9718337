"""Builds the modules of models, with initial parameters that depend on the seed alone."""

from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.models.base import ModelSpec
from fedcore.models.layers import seeded
from fedcore.random import generator


def build(
    spec: ModelSpec, features: tuple[int, ...], classes: int, seed: int, vectors: Tensor | None = None
) -> nn.Module:
    """The module with its initial parameters, drawn from the run's seed: PyTorch's own, unless the
    model's source has others.

    Convex models too: from zero, a client of one class has exactly equal gradients for all others,
    and which of them top-k keeps would be left to rounding. `vectors` [V, E] stand for the symbols
    of a data set that has such.
    """
    with seeded(generator(seed, "init")):
        module = spec.build(features, classes, vectors)
    refuse_buffers(module)
    return module


def refuse_buffers(module: nn.Module) -> None:
    """Raise SpecificationError for a module that keeps running statistics.

    Fixed buffers, which it does not save, may stay.
    """
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names = [name for name in module.state_dict() if name not in trained]
    if names:
        why = "averaging running statistics is wrong under heterogeneity; use group norm"
        raise SpecificationError(
            "/problem/model", f"models with buffers ({', '.join(names)}) are refused: {why}"
        )
