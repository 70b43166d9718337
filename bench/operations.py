"""Count the least operations and bytes of a round, from the specification and the plan.

Operations: 2 m n k for each matrix product, forward, for the gradient of the weights, and for that
of the inputs save in the first layer; convolutions as products. Bytes: the samples of each cohort
client once, and its model read and written once. Anything an engine moves beyond that (a client's
samples again in every epoch, if they do not stay in a cache) does not count.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

STAGES = (64, 64, 128, 256, 512)
"""Channels that the four stages of ResNet-18 read and write."""


class Layer(NamedTuple):
    """The products of one layer for one sample."""

    weights: int
    """m n k of the product with the weights."""
    first: bool = False
    """Its inputs are given, so they need no gradient."""
    frozen: bool = False
    """Its weights are not trained."""

    @property
    def operations(self) -> int:
        """Forward and backward."""
        return 2 * self.weights * (3 - self.first - self.frozen)


class Work(NamedTuple):
    """Work of a round, or of several."""

    operations: float
    traffic: float
    """Bytes."""


def per_sample(model: dict[str, Any], shape: Sequence[int], classes: int) -> int:
    """Operations of one sample in one local step."""
    return sum(layer.operations for layer in _layers(model, shape, classes))


def turns_of(folder: Path, turns: int, rounds: int) -> list[Work]:
    """Return the work of `turns` turns of several rounds each, from the second round of an exported
    plan on; the first is not timed.
    """
    each = rounds_of(folder, turns * rounds)
    return [
        Work(*map(sum, zip(*each[first : first + rounds], strict=True)))
        for first in range(0, len(each), rounds)
    ]


def rounds_of(folder: Path, rounds: int) -> list[Work]:
    """Yield rounds 2, 3, ..."""
    about = json.loads((folder / "task.json").read_text())
    each = per_sample(about["model"], about["shape"], about["classes"])
    sizes = np.diff(np.load(folder / "offsets.npy"))
    sample_bytes = np.load(folder / "features.npy", mmap_mode="r")[0].nbytes
    with np.load(folder / "initial.npz") as initial:
        model_bytes = sum(initial[name].nbytes for name in initial)
    with np.load(folder / "plan.npz") as plan:
        clients, ends, batches = plan["clients"], np.cumsum(plan["steps"].sum(1)), plan["batches"]
    visits = [int((batches[ends[row] : ends[row + 1]] >= 0).sum()) for row in range(rounds)]
    held = [int(sizes[cohort].sum()) * sample_bytes for cohort in clients[1 : rounds + 1]]
    return [
        Work(float(each * seen), float(data + 2 * model_bytes * clients.shape[1]))
        for seen, data in zip(visits, held, strict=True)
    ]


def _layers(model: dict[str, Any], shape: Sequence[int], classes: int) -> list[Layer]:  # noqa: PLR0911 - one per model
    match model["kind"]:
        case "logistic":
            return _dense([prod(shape), classes], first=True)
        case "mlp":
            return _dense([prod(shape), *model["hidden"], classes], first=True)
        case "cnn":
            return _cnn(model, shape, classes)
        case "dropout_cnn":
            return _dropout_cnn(shape, classes)
        case "resnet18":
            return _resnet18(shape, classes)
        case "char_lstm":
            return _lstm(model, shape[0], classes)
        case "causal_lm":
            return _language_model(model, shape[0], classes)
        case kind:
            raise ValueError(f"the products of the model {kind} are not counted")


def _dense(widths: Sequence[int], *, first: bool) -> list[Layer]:
    return [
        Layer(fan_in * fan_out, first and place == 0)
        for place, (fan_in, fan_out) in enumerate(pairwise(widths))
    ]


def _convolution(pixels: int, side: int, fan_in: int, fan_out: int, *, first: bool = False) -> Layer:
    """A convolution of `side` x `side` weights with this many pixels of outputs."""
    return Layer(pixels * side * side * fan_in * fan_out, first)


def _cnn(model: dict[str, Any], shape: Sequence[int], classes: int) -> list[Layer]:
    channels, height, width = shape
    one, two = model["channels"]
    # The second works on maps of half the side, the dense layers on those of a quarter.
    maps = [
        _convolution(height * width, 5, channels, one, first=True),
        _convolution((height // 2) * (width // 2), 5, one, two),
    ]
    return [*maps, *_dense([two * (height // 4) * (width // 4), *model["hidden"], classes], first=False)]


def _dropout_cnn(shape: Sequence[int], classes: int) -> list[Layer]:
    channels, height, width = shape
    maps = [
        _convolution((height - 2) * (width - 2), 3, channels, 32, first=True),
        _convolution((height - 4) * (width - 4), 3, 32, 64),
    ]
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return [*maps, *_dense([flat, 128, classes], first=False)]


def _resnet18(shape: Sequence[int], classes: int) -> list[Layer]:
    channels, height, width = shape
    layers = [_convolution(height * width, 3, channels, STAGES[0], first=True)]
    for fan_in, fan_out in pairwise(STAGES):
        if fan_in != fan_out:
            height, width = -(-height // 2), -(-width // 2)
            layers.append(_convolution(height * width, 1, fan_in, fan_out))
        layers.append(_convolution(height * width, 3, fan_in, fan_out))
        layers += 3 * [_convolution(height * width, 3, fan_out, fan_out)]
    return [*layers, *_dense([STAGES[-1], classes], first=False)]


def _lstm(model: dict[str, Any], length: int, classes: int) -> list[Layer]:
    """Four gates from input and state at each character.

    The embedding is trained, so its vectors need gradients.
    """
    hidden = model["hidden"]
    inputs = [model["embedding"], *[hidden] * (model["layers"] - 1)]
    gates = [Layer(length * 4 * hidden * width) for width in inputs]
    # The state before the first character is given and needs no gradient.
    states = [Layer(4 * hidden * hidden, first=True), Layer((length - 1) * 4 * hidden * hidden)] * model[
        "layers"
    ]
    return [*gates, *states, *_dense([hidden, classes], first=False)]


def _language_model(model: dict[str, Any], length: int, classes: int) -> list[Layer]:
    """GPT-2 with adapters beside the layer of queries, keys and values; each pair of places counts."""
    width, rank = model["arguments"]["n_embd"], model["lora"]["rank"]
    layers = [Layer(length * width * classes, frozen=True)]
    for block in range(model["arguments"]["n_layer"]):
        layers += [
            Layer(length * 3 * width * width, first=block == 0, frozen=True),
            Layer(length * width * rank, first=block == 0),
            Layer(length * 3 * width * rank),
            *2 * [Layer(length * length * width)],
            Layer((1 + 4 + 4) * length * width * width, frozen=True),
        ]
    return layers
