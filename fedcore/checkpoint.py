"""The whole state of a run as one safetensors file: tensors by name, and a manifest that says whose they are."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedcore.errors import CheckpointError
from fedcore.spec import ExperimentSpec

FORMAT = 1
_MANIFEST = "fedq"


def fingerprint(spec: ExperimentSpec, seed: int) -> str:
    """What identifies a run's computation: SHA-256 over its specification (without names and execution) and seed."""
    computed = spec.model_dump(mode="json", exclude={"name", "description", "tags", "seeds", "sweep", "execution"})
    document = json.dumps({"spec": computed, "seed": seed, "precision": spec.precision}, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def dumps(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> bytes:
    """Tensors and manifest as safetensors, with a digest over the tensors."""
    resident = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    note = json.dumps({**manifest, "format": FORMAT, "digest": _digest(save(resident))}, sort_keys=True)
    return save(resident, {_MANIFEST: note})


def loads(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and manifest of `dumps`; raises CheckpointError when the bytes are damaged or of another format."""
    try:
        tensors = load(data)
        manifest = json.loads(_header(data)[0]["__metadata__"][_MANIFEST])
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"not a readable checkpoint: {error}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint of format {manifest.get('format')}; this version reads format {FORMAT}")
    if manifest["digest"] != _digest(data):
        raise CheckpointError("the checkpoint is damaged: its tensors do not match its digest")
    return tensors, manifest


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The safetensors header, and the tensors' bytes after it."""
    end = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:end])
    return header, data[end:]


def _digest(data: bytes) -> str:
    """Of the tensors' bytes, whatever the header says."""
    return hashlib.blake2b(_header(data)[1], digest_size=16).hexdigest()
