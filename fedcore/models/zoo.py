"""The models: each specification as an `nn.Module` that maps inputs [B, *features] to scores [B,
classes].
"""

from math import prod

from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.models.convolutional import convolutional
from fedcore.models.imported import imported
from fedcore.models.layers import dense, seeded
from fedcore.models.recurrent import CharacterLstm, SentimentLstm
from fedcore.random import generator
from fedcore.spec.model import AnyModel, CharLstm, Imported, Linear, Logistic, Mlp, SentLstm


def build(
    spec: AnyModel, features: tuple[int, ...], classes: int, seed: int, vectors: Tensor | None = None
) -> nn.Module:
    """The module with its initial parameters, drawn from the run's seed: PyTorch's own, unless the
    model's source has others.

    Convex models too: from zero, a client of one class has exactly equal gradients for all others,
    and which of them top-k keeps would be left to rounding. `vectors` [V, E] stand for the symbols
    of a data set that has such.
    """
    with seeded(generator(seed, "init")):
        module = _module(spec, features, classes, vectors)
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


def _module(spec: AnyModel, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
    match spec:
        case Linear() | Logistic():
            return dense(prod(features), classes)
        case Mlp(hidden=hidden):
            return dense(prod(features), *hidden, classes)
        case Imported():
            return imported(spec, features, classes)
        case CharLstm():
            return CharacterLstm(spec, classes)
        case SentLstm():
            assert vectors is not None
            return SentimentLstm(spec, vectors)
        case _:
            return convolutional(spec, features, classes)
