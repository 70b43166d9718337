"""Convolutional networks, each mapping images [B, channels, height, width] to scores [B,
classes].
"""

from itertools import pairwise

from torch import Tensor, nn

from fedcore.models.layers import dense
from fedcore.spec.model import Cnn, Convolutional, FedawareCnn, Resnet18, Vgg11
from fedcore.spec.shapes import FEDAWARE_CHANNELS, RESNET18_CHANNELS, VGG11_CHANNELS, widths

GROUPS = 8
"""Groups of a group norm of `cnn`, or as many as divide the channels."""


def convolutional(spec: Convolutional, features: tuple[int, ...], classes: int) -> nn.Module:
    """The module, with initial parameters from PyTorch's stream."""
    match spec:
        case Cnn():
            return _cnn(spec, features, classes)
        case FedawareCnn():
            return _fedaware_cnn(features, classes)
        case Vgg11():
            return _vgg11(features, classes)
        case Resnet18(groups=groups):
            return _resnet18(features[0], classes, groups)


def _cnn(spec: Cnn, features: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = features
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *spec.channels)):
        layers.append(nn.Conv2d(fan_in, fan_out, kernel_size=5, padding=2))
        if spec.norm == "group":
            layers.append(nn.GroupNorm(GROUPS if fan_out % GROUPS == 0 else 1, fan_out))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    flat = spec.channels[-1] * (height // 4) * (width // 4)
    return nn.Sequential(*layers, *dense(flat, *widths(spec), classes))


def _fedaware_cnn(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """ToyCifarNet of FedAWARE's code: convolutions initialised by He (fan-out), dense layers N(0,
    0.01^2), biases 0.
    """
    channels, height, width = features
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *FEDAWARE_CHANNELS)):
        height, width = height - 2, width - 2
        layers += [nn.Conv2d(fan_in, fan_out, kernel_size=3), nn.ReLU()]
        if len(layers) < 6:  # The first two are pooled.
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    module = nn.Sequential(*layers, *dense(FEDAWARE_CHANNELS[-1] * height * width, 64, classes))
    _he_fan_out(module)
    for layer in module:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return module


def _vgg11(features: tuple[int, ...], classes: int) -> nn.Sequential:
    """FedNova's VGG-11: convolutions N(0, 2 / (9 fan_out)) with biases 0, dense layers as PyTorch
    initialises them.
    """
    fan_in, height, width = features
    layers: list[nn.Module] = []
    for group in VGG11_CHANNELS:
        for fan_out in group:
            layers += [nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1), nn.ReLU()]
            fan_in = fan_out
        layers.append(nn.MaxPool2d(2))
    module = nn.Sequential(*layers, *dense(512 * (height // 32) * (width // 32), 512, 512, classes))
    _he_fan_out(module)
    return module


def _he_fan_out(module: nn.Module) -> None:
    """Weights of convolutions N(0, 2 / (side^2 fan_out)), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class _Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
            nn.ReLU(),
            nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
        )
        projection = [nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), nn.GroupNorm(groups, fan_out)]
        self.shortcut = nn.Sequential(*(projection if fan_in != fan_out else []))
        self.last = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        return self.last(self.body(maps) + self.shortcut(maps))  # type: ignore[no-any-return]


def _resnet18(channels: int, classes: int, groups: int) -> nn.Sequential:
    """He et al. (2016) with a stem for small images.

    Convolutions initialised by He (fan-out), as torchvision has it.
    """
    blocks = []
    for fan_in, fan_out in pairwise((64, *RESNET18_CHANNELS)):
        blocks += [
            _Block(fan_in, fan_out, 1 if fan_in == fan_out else 2, groups),
            _Block(fan_out, fan_out, 1, groups),
        ]
    stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()
    module = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), *dense(RESNET18_CHANNELS[-1], classes))
    _he_fan_out(module)
    return module
