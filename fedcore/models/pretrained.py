"""Pretrained weights by digest, from files in safetensors format, and the choice of the parameters
that are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedcore.data.digest_files import file_of_digest
from fedcore.errors import DataUnavailableError, SpecificationError

POINTER = "/problem/model"
_LISTED = 5


def load_weights(module: nn.Module, weights: str, folders: Sequence[Path]) -> None:
    """Load the file with the digest `weights` from the first of `folders` that has it into
    `module`. The last layer keeps its own parameters if the file's are for other classes.

    Raises DataUnavailableError if the file is in none of them, and SpecificationError if it is not
    of this network.
    """
    tensors = dict(read_weights(weights, folders))
    wanted = module.state_dict()
    for name in head_parameters(module):
        if name in tensors and tensors[name].shape != wanted[name].shape:
            del tensors[name]
    keeps = {*head_parameters(module), *(name for name in wanted if name.endswith("num_batches_tracked"))}
    flaws = {
        "missing": [name for name in wanted if name not in tensors and name not in keeps],
        "unknown": [name for name in tensors if name not in wanted],
        "of another shape": [
            f"{name} {list(tensor.shape)} instead of {list(wanted[name].shape)}"
            for name, tensor in tensors.items()
            if name in wanted and tensor.shape != wanted[name].shape
        ],
    }
    check_names(flaws)
    module.load_state_dict(tensors, strict=False)


def check_names(flaws: Mapping[str, Sequence[str]]) -> None:
    """Raise SpecificationError if there are names of tensors under any of the `flaws` of a file."""
    told = [f"{what}: {summarise_names(names)}" for what, names in flaws.items() if names]
    if told:
        raise SpecificationError(f"{POINTER}/weights", f"the file is not of this network; {'; '.join(told)}")


def select_trained(module: nn.Module, train: str | tuple[str, ...]) -> None:
    """Leave trained only the last layer (`head`), or the parameters whose names match a pattern.

    Raises SpecificationError for a pattern that matches none.
    """
    if train == "all":
        return
    patterns = tuple(head_parameters(module)) if isinstance(train, str) else train
    names = [name for name, _ in module.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SpecificationError(
                f"{POINTER}/train", f"{pattern!r} matches no parameter; there are {summarise_names(names)}"
            )
    for name, parameter in module.named_parameters():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad = False


def head_parameters(module: nn.Module) -> list[str]:
    """Names of the parameters of the last dense or convolutional layer, which scores the classes."""
    layers = [
        (name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    if not layers:
        return []
    name, layer = layers[-1]
    return [f"{name}.{own}".lstrip(".") for own, _ in layer.named_parameters()]


def read_weights(weights: str, folders: Sequence[Path]) -> Mapping[str, Tensor]:
    """The tensors by name of the safetensors file with the digest `weights`, from the first of
    `folders` that has it.

    Raises DataUnavailableError.
    """
    path = file_of_digest(weights, folders, "safetensors")
    try:
        tensors: Mapping[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise DataUnavailableError(f"{path} is not a safetensors file: {error}") from error
    return tensors


def summarise_names(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
