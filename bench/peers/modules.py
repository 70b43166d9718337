"""The models of the workloads as a PyTorch user writes them, with FedQ's names for their
parameters.
"""

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.common import Arrays, Task


def build(task: Task) -> nn.Module:
    """The module, with the parameters that the task starts from."""
    made = module(task.model, task.shape, task.classes)
    load(made, task.initial | task.frozen)
    return made


def load(module: nn.Module, arrays: Arrays) -> None:
    """Set these of its parameters."""
    load_trained(module, {name: torch.from_numpy(value) for name, value in arrays.items()})


def load_trained(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set these of its parameters, all that are trained among them."""
    missing, unknown = module.load_state_dict(tensors, strict=False)
    if unknown or trained(module).keys() & set(missing):
        raise ValueError(f"parameters are missing ({missing}) or unknown ({unknown})")


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained."""
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def arrays(module: nn.Module) -> Arrays:
    """The parameters that are trained."""
    return {name: value.numpy().copy() for name, value in trained(module).items()}


def module(model: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:  # noqa: PLR0911 - one per model
    """The module with parameters as PyTorch draws them."""
    match model["kind"]:
        case "logistic":
            return _dense(prod(shape), classes)
        case "mlp":
            return _dense(prod(shape), *model["hidden"], classes)
        case "cnn":
            return _cnn(model, shape, classes)
        case "dropout_cnn":
            return _dropout_cnn(shape, classes)
        case "resnet18":
            return _resnet18(model["groups"], shape, classes)
        case "char_lstm":
            return CharacterLstm(model, classes)
        case "causal_lm":
            return _language_model(model, classes)
        case kind:
            raise ValueError(f"there is no module for the model {kind}")


def _dense(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(model: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *model["channels"])):
        layers += [nn.Conv2d(fan_in, fan_out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    flat = model["channels"][-1] * (height // 4) * (width // 4)
    return nn.Sequential(*layers, *_dense(flat, *model["hidden"], classes))


def _dropout_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def _resnet18(groups: int, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    layers = [nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()]
    for fan_in, fan_out in pairwise((64, 64, 128, 256, 512)):
        stride = 1 if fan_in == fan_out else 2
        layers += [ResidualBlock(fan_in, fan_out, stride, groups), ResidualBlock(fan_out, fan_out, 1, groups)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *_dense(512, classes))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, with group norm."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
            nn.ReLU(),
            nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
        )
        self.shortcut = nn.Sequential()
        if fan_in != fan_out:
            self.shortcut.append(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False))
            self.shortcut.append(nn.GroupNorm(groups, fan_out))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [B, C, H, W] to as many of the outputs' channels."""
        return nn.functional.relu(self.body(maps) + self.shortcut(maps))


class CharacterLstm(nn.Module):
    """Scores for the character that follows."""

    def __init__(self, model: dict[str, Any], symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, model["embedding"])
        self.lstm = nn.LSTM(model["embedding"], model["hidden"], model["layers"], batch_first=True)
        self.output = nn.Linear(model["hidden"], symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols [B, T] to scores [B, classes]."""
        outputs, _ = self.lstm(self.embedding(symbols.int()))
        scores: Tensor = self.output(outputs[:, -1])
        return scores


def _language_model(model: dict[str, Any], symbols: int) -> nn.Module:
    """A GPT-2 of transformers with adapters of peft: symbols [B, T] to scores [B, classes, T]."""
    import peft
    import transformers

    without: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
    configuration = transformers.GPT2Config(vocab_size=symbols, **model["arguments"], **without)
    module: nn.Module = transformers.GPT2LMHeadModel(configuration)
    lora = model["lora"]
    adapters = peft.LoraConfig(
        r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["targets"], fan_in_fan_out=True
    )
    peft.inject_adapter_in_model(adapters, module)
    module.register_forward_pre_hook(lambda _, inputs: (inputs[0].long(),))
    module.register_forward_hook(lambda _, _inputs, output: output.logits.mT)
    return module
