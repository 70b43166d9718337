"""Convolutional networks for images [B, channels, height, width]."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from fedcore.data.base import DataShape
from fedcore.lazy import LazyModule, nn
from fedcore.models.base import BatchNormPolicy, ModelSpec, Width, dense_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.models import layers
else:
    layers = LazyModule("fedcore.models.layers")

GROUPS = 8
"""Groups of a group norm of `cnn`, or as many as divide the channels."""
VGG11_CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Output channels of the convolutions of VGG-11; 2 x 2 max-pooling ends each group."""
RESNET18_CHANNELS = (64, 128, 256, 512)
"""Channels of the stages of ResNet-18, two blocks of two convolutions each."""
FEDAWARE_CHANNELS = (32, 64, 64)


class _ImageModel(ModelSpec):
    is_examined = False
    smallest: ClassVar[int] = 1
    """Height and width below which nothing would be left of an image."""

    def misfit(self, shape: DataShape) -> str | None:
        if len(shape.features) != 3:
            return (
                f"{self.kind} requires images [channels, height, width], but the features are"
                f" {list(shape.features)}: use logistic or mlp"
            )
        if min(shape.features[1:]) < self.smallest:
            return (
                f"{self.kind} requires images of at least {self.smallest} x {self.smallest}, not"
                f" {shape.features[1]} x {shape.features[2]}"
            )
        return None


class Cnn(_ImageModel):
    """The CNNs of McMahan et al. (2017): two 5 x 5 convolutions, each with 2 x 2 max-pooling,
    hidden dense layers, cross-entropy.

    The defaults are the model for MNIST. `channels: [64, 64], hidden: [384, 192]` is the model for
    CIFAR-10 (TensorFlow's tutorial), without local response normalisation and on full images.
    """

    smallest = 4
    example = {"norm": "group"}

    kind: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Width, Width], Field()] = (32, 64)
    """Channels of the two convolutions."""
    hidden: Width | Annotated[tuple[Width, ...], Field(fail_fast=True, min_length=1, max_length=16)] = 512
    """Width of the dense layer, or the widths of several."""
    norm: Literal["none", "group"] = "none"
    """`group` puts group norm after each convolution."""

    @field_validator("norm", mode="before")
    @classmethod
    def _no_batch_norm(cls, value: object) -> object:
        if value in ("batch", "batch_norm"):
            raise ValueError(
                "batch norm is not supported: averaging running statistics is wrong under heterogeneity; use"
                " 'group'"
            )
        return value

    def parameter_count(self, shape: DataShape) -> int:
        channels, height, width = shape.features
        maps, norms = self.channels, 2 * sum(self.channels) if self.norm == "group" else 0
        flat = maps[-1] * (height // 4) * (width // 4)
        return (
            _convolution_parameters(5, channels, *maps)
            + norms
            + dense_parameters(flat, *self.widths, shape.outputs)
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden dense layers."""
        return self.hidden if isinstance(self.hidden, tuple) else (self.hidden,)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        channels, height, width = features
        parts: list[nn.Module] = []
        for fan_in, fan_out in pairwise((channels, *self.channels)):
            parts.append(nn.Conv2d(fan_in, fan_out, kernel_size=5, padding=2))
            if self.norm == "group":
                parts.append(nn.GroupNorm(GROUPS if fan_out % GROUPS == 0 else 1, fan_out))
            parts += [nn.ReLU(), nn.MaxPool2d(2)]
        flat = self.channels[-1] * (height // 4) * (width // 4)
        return nn.Sequential(*parts, *layers.dense(flat, *self.widths, classes))


class DropoutCnn(_ImageModel):
    """The CNN with dropout of Reddi et al., Adaptive Federated Optimization (2021), for EMNIST:
    3 x 3 convolutions of 32 and 64 channels without padding, 2 x 2 max-pooling, dropout of 0.25, a
    dense layer of 128, dropout of 0.5.

    It is the CIFAR-10 CNN of pfl-research, the EMNIST CNN of FedJAX and the FEMNIST CNN of FLUTE.
    """

    smallest = 6
    is_examined = True
    example = {"initial": "pytorch"}

    kind: Literal["dropout_cnn"] = "dropout_cnn"
    initial: Literal["glorot", "pytorch"] = "glorot"
    """Initial weights: uniform after Glorot, as in pfl-research, or PyTorch's own, as in FLUTE.
    Biases are PyTorch's own in both.
    """

    @property
    def has_dropout(self) -> bool:
        return True

    def parameter_count(self, shape: DataShape) -> int:
        channels, height, width = shape.features
        flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        return _convolution_parameters(3, channels, 32, 64) + dense_parameters(flat, 128, shape.outputs)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        channels, height, width = features
        module = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
        if self.initial == "glorot":
            for layer in module:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
        return module


class FedawareCnn(_ImageModel):
    """The small CNN of FedAWARE's code: 3 x 3 convolutions without padding of 32, 64 and 64
    channels, max-pooling after two, one of 64.
    """

    smallest = 18

    kind: Literal["fedaware_cnn"] = "fedaware_cnn"

    def parameter_count(self, shape: DataShape) -> int:
        channels, height, width = shape.features
        flat = FEDAWARE_CHANNELS[-1] * _unpadded(height) * _unpadded(width)
        return _convolution_parameters(3, channels, *FEDAWARE_CHANNELS) + dense_parameters(
            flat, 64, shape.outputs
        )

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        """ToyCifarNet of FedAWARE's code: convolutions initialised by He (fan-out), dense layers N(0,
        0.01^2), biases 0.
        """
        channels, height, width = features
        parts: list[nn.Module] = []
        for fan_in, fan_out in pairwise((channels, *FEDAWARE_CHANNELS)):
            height, width = height - 2, width - 2
            parts += [nn.Conv2d(fan_in, fan_out, kernel_size=3), nn.ReLU()]
            if len(parts) < 6:  # The first two are pooled.
                parts.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        module = nn.Sequential(*parts, *layers.dense(FEDAWARE_CHANNELS[-1] * height * width, 64, classes))
        _he_fan_out(module)
        for layer in module:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)
        return module


class FedbnCnn(_ImageModel):
    """The CNN of FedBN (Li et al., ICLR 2021) for digits: three 5 x 5 convolutions, 2 x 2 max-pooling after
    the first two, and hidden dense layers, with batch norm before each ReLU; cross-entropy.
    """

    smallest = 4
    is_examined = True
    example = {"channels": [4, 4, 8], "hidden": [16]}

    kind: Literal["fedbn_cnn"] = "fedbn_cnn"
    channels: Annotated[tuple[Width, Width, Width], Field()] = (64, 64, 128)
    """Channels of the three convolutions."""
    hidden: Annotated[tuple[Width, ...], Field(fail_fast=True, min_length=1, max_length=16)] = (2048, 512)
    """Widths of the hidden dense layers."""
    batch_norm: BatchNormPolicy = "local"
    """Policy for batch norm. `local`: statistics and parameters of batch norm stay with the client
    (FedBN). `average`: the server averages running statistics with the weights of the aggregation.
    `frozen`: both are constants. `group`: group norm in its place.
    """

    def parameter_count(self, shape: DataShape) -> int:
        channels, height, width = shape.features
        flat = self.channels[-1] * (height // 4) * (width // 4)
        norms = 2 * (sum(self.channels) + sum(self.hidden))
        return (
            _convolution_parameters(5, channels, *self.channels)
            + dense_parameters(flat, *self.hidden, shape.outputs)
            + norms * (self.batch_norm in ("average", "group"))
        )

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        channels, height, width = features
        parts: list[nn.Module] = []
        for number, (fan_in, fan_out) in enumerate(pairwise((channels, *self.channels))):
            parts += [
                nn.Conv2d(fan_in, fan_out, kernel_size=5, padding=2),
                nn.BatchNorm2d(fan_out),
                nn.ReLU(),
            ]
            if number < 2:
                parts.append(nn.MaxPool2d(2))
        parts.append(nn.Flatten())
        widths = (self.channels[-1] * (height // 4) * (width // 4), *self.hidden)
        for fan_in, fan_out in pairwise(widths):
            parts += [nn.Linear(fan_in, fan_out), nn.BatchNorm1d(fan_out), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(widths[-1], classes))


class Vgg11(_ImageModel):
    """VGG-11 without batch norm (FedNova, Table I): eight 3 x 3 convolutions, dense layers of 512
    and 512, cross-entropy.

    Its official code has dropout before each hidden dense layer; here there is none, so that a
    gradient depends on the model and the mini-batch alone.
    """

    smallest = 32

    kind: Literal["vgg11"] = "vgg11"

    def parameter_count(self, shape: DataShape) -> int:
        channels, height, width = shape.features
        maps = (maps for group in VGG11_CHANNELS for maps in group)
        return _convolution_parameters(3, channels, *maps) + dense_parameters(
            512 * (height // 32) * (width // 32), 512, 512, shape.outputs
        )

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        """FedNova's VGG-11: convolutions N(0, 2 / (9 fan_out)) with biases 0, dense layers as PyTorch
        initialises them.
        """
        fan_in, height, width = features
        parts: list[nn.Module] = []
        for group in VGG11_CHANNELS:
            for fan_out in group:
                parts += [nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1), nn.ReLU()]
                fan_in = fan_out
            parts.append(nn.MaxPool2d(2))
        module = nn.Sequential(*parts, *layers.dense(512 * (height // 32) * (width // 32), 512, 512, classes))
        _he_fan_out(module)
        return module


class Resnet18(_ImageModel):
    """ResNet-18 for small images: a 3 x 3 stem without pooling, group norm in place of batch norm,
    cross-entropy.
    """

    kind: Literal["resnet18"] = "resnet18"
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 2
    """Groups of each group norm."""

    def parameter_count(self, shape: DataShape) -> int:
        """Convolutions without bias, each with the scale and shift of its norm; a 1 x 1 shortcut if
        the channels change.
        """
        total = 9 * shape.features[0] * 64 + 2 * 64
        for fan_in, fan_out in pairwise((64, *RESNET18_CHANNELS)):
            total += 9 * fan_out * (fan_in + 3 * fan_out) + 4 * 2 * fan_out
            total += (fan_in + 2) * fan_out if fan_in != fan_out else 0
        return total + dense_parameters(RESNET18_CHANNELS[-1], shape.outputs)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        """He et al. (2016) with a stem for small images.

        Convolutions initialised by He (fan-out), as torchvision has it.
        """
        groups = self.groups

        class ResidualBlock(nn.Module):
            """Two 3 x 3 convolutions beside a shortcut."""

            def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False),
                    nn.GroupNorm(groups, fan_out),
                    nn.ReLU(),
                    nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
                    nn.GroupNorm(groups, fan_out),
                )
                projection = [
                    nn.Conv2d(fan_in, fan_out, 1, stride, bias=False),
                    nn.GroupNorm(groups, fan_out),
                ]
                self.shortcut = nn.Sequential(*(projection if fan_in != fan_out else []))
                self.last = nn.ReLU()

            def forward(self, maps: Tensor) -> Tensor:
                return self.last(self.body(maps) + self.shortcut(maps))  # type: ignore[no-any-return]

        blocks = []
        for fan_in, fan_out in pairwise((64, *RESNET18_CHANNELS)):
            blocks += [
                ResidualBlock(fan_in, fan_out, 1 if fan_in == fan_out else 2),
                ResidualBlock(fan_out, fan_out, 1),
            ]
        stem = nn.Conv2d(features[0], 64, 3, padding=1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()
        head = layers.dense(RESNET18_CHANNELS[-1], classes)
        module = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), *head)
        _he_fan_out(module)
        return module


def _he_fan_out(module: nn.Module) -> None:
    """Weights of convolutions N(0, 2 / (side^2 fan_out)), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _convolution_parameters(side: int, *channels: int) -> int:
    return sum((side * side * fan_in + 1) * fan_out for fan_in, fan_out in pairwise(channels))


def _unpadded(side: int) -> int:
    """Height or width of an image after the convolutions of FedAWARE's CNN."""
    return ((side - 2) // 2 - 2) // 2 - 2
