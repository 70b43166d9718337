"""Sizes of a problem without loading it: clients, samples, and the number of parameters D.

Also which data a model can be trained on.
"""

from itertools import pairwise
from math import prod

from fedcore.data.datasets import DataShape, client_count, data_shape
from fedcore.data.exact import ExactProblem
from fedcore.spec.model import (
    AnyModel,
    CharLstm,
    Cnn,
    Convolutional,
    FedawareCnn,
    Imported,
    Linear,
    Logistic,
    Mlp,
    Resnet18,
    SentLstm,
    Vgg11,
)
from fedcore.spec.problem import Problem

VGG11_CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Output channels of the convolutions of VGG-11; 2 x 2 max-pooling ends each group."""
RESNET18_CHANNELS = (64, 128, 256, 512)
"""Channels of the stages of ResNet-18, two blocks of two convolutions each."""
FEDAWARE_CHANNELS = (32, 64, 64)
_SMALLEST = {"cnn": 4, "fedaware_cnn": 18, "vgg11": 32, "resnet18": 1}
"""Height and width below which nothing would be left of an image."""


def misfit(model: AnyModel, shape: DataShape) -> str | None:
    """Why `model` cannot be trained on data of `shape`; None where it can."""
    if isinstance(model, CharLstm | SentLstm):
        return _sequence_misfit(model, shape)
    if shape.symbols:
        return (
            f"{model.kind} requires numeric features, but these data are symbols: use"
            f" {'sent_lstm' if shape.embedding else 'char_lstm'}"
        )
    if not isinstance(model, Convolutional):
        return None
    if len(shape.features) != 3:
        return (
            f"{model.kind} requires images [channels, height, width], but the features are"
            f" {list(shape.features)}: use logistic or mlp"
        )
    smallest = _SMALLEST[model.kind]
    if min(shape.features[1:]) < smallest:
        return (
            f"{model.kind} requires images of at least {smallest} x {smallest}, not {shape.features[1]} x"
            f" {shape.features[2]}"
        )
    return None


def _sequence_misfit(model: CharLstm | SentLstm, shape: DataShape) -> str | None:
    if isinstance(model, CharLstm) and (not shape.symbols or shape.embedding):
        return "char_lstm requires sequences of characters, e.g. shakespeare"
    if isinstance(model, SentLstm) and not shape.embedding:
        return "sent_lstm requires sequences of words with fixed vectors, e.g. sent140"
    return None


def parameters(model: AnyModel, shape: DataShape) -> int:
    """Number of parameters D of a model that fits the data."""
    features, classes = shape.features, shape.outputs
    match model:
        case Linear() | Logistic():
            return _dense(prod(features), classes)
        case Mlp(hidden=hidden):
            return _dense(prod(features), *hidden, classes)
        case Imported():
            return model.parameters
        case CharLstm():
            return (
                shape.symbols * model.embedding
                + _lstm(model.embedding, model.hidden, model.layers)
                + _dense(model.hidden, classes)
            )
        case SentLstm():
            return _lstm(shape.embedding, model.hidden, model.layers) + _dense(model.hidden, model.dense, 1)
        case _:
            return _convolutional(model, features, classes)


def widths(model: Cnn) -> tuple[int, ...]:
    """Widths of the hidden dense layers."""
    return model.hidden if isinstance(model.hidden, tuple) else (model.hidden,)


def _convolutional(model: Convolutional, features: tuple[int, ...], classes: int) -> int:
    channels, height, width = features
    match model:
        case Cnn(channels=maps):
            norms = 2 * sum(maps) if model.norm == "group" else 0
            convolutions = _biased_convolutions(5, channels, *maps)
            return (
                convolutions
                + norms
                + _dense(maps[-1] * (height // 4) * (width // 4), *widths(model), classes)
            )
        case FedawareCnn():
            flat = FEDAWARE_CHANNELS[-1] * _unpadded(height) * _unpadded(width)
            return _biased_convolutions(3, channels, *FEDAWARE_CHANNELS) + _dense(flat, 64, classes)
        case Vgg11():
            convolutions = _biased_convolutions(
                3, channels, *(maps for group in VGG11_CHANNELS for maps in group)
            )
            return convolutions + _dense(512 * (height // 32) * (width // 32), 512, 512, classes)
        case Resnet18():
            return _resnet18(channels) + _dense(RESNET18_CHANNELS[-1], classes)


def _unpadded(side: int) -> int:
    """Height or width of an image after the convolutions of FedAWARE's CNN."""
    return ((side - 2) // 2 - 2) // 2 - 2


def _resnet18(channels: int) -> int:
    """Convolutions without bias, each with the scale and shift of its norm.

    A 1 x 1 shortcut where the channels change.
    """
    total = 9 * channels * 64 + 2 * 64
    for fan_in, fan_out in pairwise((64, *RESNET18_CHANNELS)):
        total += 9 * fan_out * (fan_in + 3 * fan_out) + 4 * 2 * fan_out
        total += (fan_in + 2) * fan_out if fan_in != fan_out else 0
    return total


def _biased_convolutions(side: int, *channels: int) -> int:
    return sum((side * side * fan_in + 1) * fan_out for fan_in, fan_out in pairwise(channels))


def _lstm(fan_in: int, hidden: int, layers: int) -> int:
    """Four gates per layer, each with input weights, recurrent weights and, as PyTorch has it, two
    biases.
    """
    return 4 * hidden * (layers * (hidden + 2) + fan_in + (layers - 1) * hidden)


def _dense(*layers: int) -> int:
    return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(layers))


def population(problem: Problem) -> int:
    """Number of clients N."""
    return problem.partition.clients if problem.partition is not None else client_count(problem.dataset)


def dimension(problem: Problem) -> int:
    """Number of parameters D."""
    if isinstance(problem.dataset, ExactProblem):
        return problem.dataset.dim
    assert problem.model is not None
    return parameters(problem.model, data_shape(problem.dataset))
