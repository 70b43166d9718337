"""Models by import path: call the user's factory and check what the engines rely on."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.settings import settings
from fedcore.spec.model import Imported
from fedcore.spec.model_allowlist import POINTER, check_allowed_model

Factory = Callable[[tuple[int, ...], int], nn.Module]


def imported(spec: Imported, features: tuple[int, ...], outputs: int) -> nn.Module:
    """The module of the factory for samples of shape `features` and `outputs` scores.

    Raises SpecificationError. The import runs code, so the settings of this process, too, must
    allow the path.
    """
    check_allowed_model(spec, settings().models_allowed)
    factory = _factory(spec)
    try:
        module = factory(features, outputs)
    except Exception as error:
        raise _flaw(
            spec, f"failed for samples of shape {list(features)} and {outputs} outputs: {_told(error)}"
        ) from error
    if not isinstance(module, nn.Module):
        raise _flaw(spec, f"returned {type(module).__name__}; it must return a torch.nn.Module")
    _check_parameters(spec, module)
    _check_scores(spec, module, features, outputs)
    return module


def _factory(spec: Imported) -> Factory:
    module_name, _, name = spec.path.partition(":")
    try:
        module = import_module(module_name)
        found: Any = getattr(module, name)
    except Exception as error:
        raise _flaw(spec, f"cannot be imported by this worker: {_told(error)}") from error
    # Else whatever an allowed module itself imports could be called.
    if not callable(found) or getattr(found, "__module__", None) != module_name:
        raise _flaw(spec, f"must be a function or class that {module_name} defines itself")
    factory: Factory = found
    return factory


def _check_parameters(spec: Imported, module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    frozen = [
        name
        for name, parameter in parameters.items()
        if not (parameter.requires_grad and parameter.is_floating_point())
    ]
    if frozen:
        raise _flaw(
            spec,
            f"has parameters that are not trained ({', '.join(frozen)}); keep what is fixed in buffers that"
            " are not persistent",
        )
    count = sum(parameter.numel() for parameter in parameters.values())
    if count != spec.parameters:
        raise SpecificationError(
            "/problem/model/parameters", f"{spec.path} has {count} parameters, not {spec.parameters}"
        )


def _check_scores(spec: Imported, module: nn.Module, features: tuple[int, ...], outputs: int) -> None:
    dtype = next(module.parameters()).dtype
    batch = torch.linspace(-1, 1, 2 * torch.Size(features).numel(), dtype=dtype).view(2, *features)
    try:
        with torch.no_grad():
            first, second = module(batch), module(batch)
    except Exception as error:
        raise _flaw(spec, f"cannot score samples of shape {list(features)}: {_told(error)}") from error
    if not isinstance(first, Tensor) or first.shape != (2, outputs):
        given = list(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise _flaw(spec, f"gives {given} for two samples; it must give scores of shape [2, {outputs}]")
    if not torch.equal(first, second):
        raise _flaw(
            spec,
            "gives other scores for the same samples (dropout?); a gradient must depend on model and"
            " mini-batch alone",
        )


def _flaw(spec: Imported, detail: str) -> SpecificationError:
    return SpecificationError(POINTER, f"{spec.path} {detail}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
