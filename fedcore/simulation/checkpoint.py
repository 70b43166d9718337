"""The whole state of a run as one safetensors file: tensors by name, and a manifest that identifies
the run.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedcore.errors import CheckpointError
from fedcore.models.module_object import ModuleObject
from fedcore.spec import ExperimentSpec

FORMAT = 5
_MANIFEST = "fedq"


def fingerprint(spec: ExperimentSpec, seed: int, *without: str) -> str:
    """Identify a run's computation: SHA-256 over its specification (without names and execution)
    and seed.

    `rounds` is left out if the caller, who extends a run, makes sure that the existing rounds would
    have been the same.
    """
    others = {"name", "description", "tags", "seeds", "sweep", "search", "execution", *without}
    computed = spec.model_dump(mode="json", exclude=others)
    if isinstance(spec.problem.model, ModuleObject):
        # It holds in one process, and the same script may resume in another.
        del computed["problem"]["model"]["token"]
    document = json.dumps({"spec": computed, "seed": seed, "precision": spec.precision}, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def dumps(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> bytes:
    """Serialise tensors and manifest as safetensors, with a digest over both."""
    resident: dict[str, Tensor] = {}
    held: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        # Parts of a state may be one and the same tensor, which a file holds but once.
        storage = own.untyped_storage().data_ptr()
        resident[name] = own.clone() if storage in held else own
        held.add(storage)
    content = {**manifest, "format": FORMAT}
    return _written(resident, {**content, "digest": _digest(resident, content)})


def loads(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and manifest of `dumps`.

    Raises CheckpointError if the bytes are damaged or of another format.
    """
    tensors, manifest = _read(data)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"unsupported checkpoint format {manifest.get('format')}; this version reads format {FORMAT}"
        )
    if manifest.pop("digest", None) != _digest(tensors, manifest):
        raise CheckpointError("the checkpoint is damaged: its content does not match its digest")
    return tensors, manifest


def _read(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        manifest = dict(json.loads(header["__metadata__"][_MANIFEST]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"not a readable checkpoint: {error}") from error
    return tensors, manifest


def _written(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> bytes:
    return save(dict(tensors), {_MANIFEST: json.dumps(manifest, sort_keys=True)})


def _digest(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_written(tensors, manifest), digest_size=16).hexdigest()
