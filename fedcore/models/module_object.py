"""An `nn.Module` passed as the model of an experiment that runs in this process."""

from __future__ import annotations

import hashlib
import sys
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from weakref import WeakValueDictionary

from pydantic import Field, PrivateAttr, model_validator

from fedcore.data.base import DataShape
from fedcore.lazy import LazyModule
from fedcore.models.base import NetworkSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedcore.models import layers
else:
    layers = LazyModule("fedcore.models.layers")

_KNOWN: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()
"""The modules alive in this process, by digest, for arms, which are read from documents."""


class ModuleObject(NetworkSpec):
    """An `nn.Module` of this process; every run starts from a copy of its parameters.

    A module given as `problem.model` becomes this block. Its document holds a digest instead of the
    module, so only the process that has the module can run it: it cannot be submitted.
    """

    may_be_dense = True

    kind: Literal["object"] = "object"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 over the module's description, parameters and buffers."""
    loss: Literal["cross_entropy", "squared_error"] = "cross_entropy"
    """Cross-entropy of the scores, or 1/2 |scores - t|^2."""
    _module: Any = PrivateAttr(None)

    @classmethod
    def of(cls, module: nn.Module, **fields: Any) -> Self:
        """The block of a module; `fields` are those of the block."""
        digest = _digest(module)
        _KNOWN[digest] = module
        return cls(digest=digest, **fields)

    @model_validator(mode="after")
    def _find_module(self) -> Self:
        self._module = _KNOWN.get(self.digest)
        return self

    @property
    def module(self) -> nn.Module:
        """The module; raises ValueError in a process that does not have it."""
        if self._module is None:
            raise ValueError("the module of this model is in another process; pass the nn.Module itself")
        found: nn.Module = self._module
        return found

    @property
    def squared_error(self) -> bool:
        return self.loss == "squared_error"

    def parameter_count(self, shape: DataShape) -> int:
        return layers.trained_count(layers.prepared(deepcopy(self.module), self), self.batch_norm)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        return deepcopy(self.module)


def model_of(value: Any) -> Any:
    """The block of an `nn.Module`; other values as they are."""
    torch = sys.modules.get("torch")
    return ModuleObject.of(value) if torch is not None and isinstance(value, torch.nn.Module) else value


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__} {module}".encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy())
    return digest.hexdigest()
