"""An `nn.Module`, or a function that makes one, as the model of an experiment that runs in this
process.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from inspect import isclass, isroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeGuard
from weakref import WeakValueDictionary

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from fedcore.block import is_none
from fedcore.data.base import DataShape
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule
from fedcore.models.base import NetworkSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fedcore import random
    from fedcore.models import layers
else:
    torch = LazyModule("torch")
    random = LazyModule("fedcore.random")
    layers = LazyModule("fedcore.models.layers")

POINTER = "/problem/model"
_KNOWN: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The modules and functions alive in this process, by digest, for arms, which are read from documents."""


class ModuleObject(NetworkSpec):
    """An `nn.Module` of this process, from whose parameters every run starts; or a class or function
    without arguments that makes one, with PyTorch's generator seeded by the run.

    Given as `problem.model`, it becomes this block; with other fields it is given as `module` beside
    them. The block's document holds a digest instead, so only the process that has the module can
    run it: it cannot be submitted.
    """

    may_be_dense = True

    kind: Literal["object"] = "object"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 over the module's description, parameters and buffers; of those that a function makes
    with seed 0.
    """
    initial: Annotated[Literal["shared"] | None, Field(exclude_if=is_none)] = None
    """`shared`: all seeds start from the same parameters, those of the module. Required for several
    seeds and a module that is made already, or a function that always makes the same.
    """
    loss: Literal["cross_entropy", "squared_error"] = "cross_entropy"
    """Cross-entropy of the scores, or 1/2 |scores - t|^2."""
    _source: Any = PrivateAttr(None)

    @classmethod
    def of(cls, module: nn.Module | Callable[[], nn.Module], **fields: Any) -> Self:
        """The block of a module, or of what makes it; `fields` are those of the block."""
        return cls.model_validate({"module": module, **fields})

    @model_validator(mode="wrap")
    @classmethod
    def _take_module(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        source = None
        if isinstance(value, dict) and "module" in value:
            given = value["module"]
            digest = _digest(given)
            # A copy: the user may train the module afterwards.
            source = _KNOWN.setdefault(digest, layers.copied(given) if _is_module(given) else given)
            value = {name: field for name, field in value.items() if name != "module"} | {"digest": digest}
        block = handler(value)
        block._source = _KNOWN.get(block.digest) if source is None else source  # noqa: SLF001 - its own
        return block

    @property
    def source(self) -> nn.Module | Callable[[], nn.Module]:
        """The module, or what makes it; raises ValueError in a process that does not have it."""
        if self._source is None:
            raise ValueError("the module of this model is in another process; pass the nn.Module itself")
        found: nn.Module | Callable[[], nn.Module] = self._source
        return found

    @property
    def squared_error(self) -> bool:
        return self.loss == "squared_error"

    @property
    def origin(self) -> Any:
        """The class or function whose source is the module's."""
        source = self.source
        return type(source) if _is_module(source) else getattr(source, "func", source)

    def check_seeds(self, count: int) -> None:
        """Raise SpecificationError if `count` runs would have one start without saying so."""
        if self.initial == "shared" or count == 1 or _varies(self.source):
            return
        raise SpecificationError(
            f"{POINTER}/initial",
            f"all {count} seeds would start from the same parameters, those of the module: pass its class, or"
            " a function that makes it (`lambda: Net()`), and each run draws its own from its seed; or say"
            ' that they are shared: `{"kind": "object", "module": net, "initial": "shared"}`',
        )

    def batch_norm_advice(self) -> str:
        return '; give it beside the module: `{"kind": "object", "module": net, "batch_norm": "average"}`'

    def parameter_count(self, shape: DataShape) -> int:
        return layers.trained_count(layers.prepared(_made(self.source, 0), self), self.batch_norm)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        return _called(self.source)


def model_of(value: Any) -> Any:
    """The block of an `nn.Module`, of a class of such or function that makes one, or of a document with
    one as its `module`; other values as they are.
    """
    if isinstance(value, dict) and value.get("kind") == "object" and "module" in value:
        return ModuleObject.model_validate(value)
    loaded = sys.modules.get("torch")
    is_class = loaded is not None and isclass(value) and issubclass(value, loaded.nn.Module)
    makes = is_class or isroutine(value) or isinstance(value, partial)
    return ModuleObject.of(value) if makes or _is_module(value) else value


def _is_module(value: Any) -> TypeGuard[nn.Module]:
    loaded = sys.modules.get("torch")
    return loaded is not None and isinstance(value, loaded.nn.Module)


def _made(source: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    with layers.seeded(random.generator(seed, "init")):
        return _called(source)


def _called(source: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """A copy of the module, or another one of what makes them."""
    if _is_module(source):
        return layers.copied(source)
    try:
        module: Any = source()
    except Exception as error:
        raise SpecificationError(
            POINTER,
            f"{_name(source)} cannot make a module without arguments ({error!r}): pass `lambda: Net(...)`",
        ) from error
    if not _is_module(module):
        raise SpecificationError(
            POINTER, f"{_name(source)} returned {type(module).__name__}; it must return a torch.nn.Module"
        )
    # A function may return one and the same module, which belongs to the user.
    return layers.copied(module)


@lru_cache(maxsize=32)
def _varies(source: nn.Module | Callable[[], nn.Module]) -> bool:
    """True if other seeds give other parameters."""
    return not _is_module(source) and _digest_of(_made(source, 0)) != _digest_of(_made(source, 1))


def _digest(source: nn.Module | Callable[[], nn.Module]) -> str:
    """The digest of a module, or of the one that `source` makes with seed 0.

    Raises SpecificationError if it makes another one the next time.
    """
    if _is_module(source):
        return _digest_of(source)
    digest = _digest_of(_made(source, 0))
    if _digest_of(_made(source, 0)) != digest:
        raise SpecificationError(
            POINTER,
            f"{_name(source)} makes other parameters each time; draw them from the global generators of"
            " PyTorch, NumPy or `random`, which FedQ seeds",
        )
    return hashlib.sha256(f"{_name(source)} {digest}".encode()).hexdigest()


def _digest_of(module: nn.Module) -> str:
    digest = hashlib.sha256(f"{_name(type(module))} {module}".encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _name(source: Any) -> str:
    named = getattr(source, "func", source)
    return f"{named.__module__}.{named.__qualname__}"
