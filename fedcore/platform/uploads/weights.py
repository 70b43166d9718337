"""Uploaded pretrained weights: files in safetensors format, checked without reading the tensors."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import UploadError

MAX_HEADER_BYTES = 16 << 20
"""Of the JSON before the tensors: some 100,000 tensors."""


class WeightsContent(NamedTuple):
    """Facts of a file of weights."""

    digest: str
    """`sha256:` and the SHA-256 of the file."""
    tensors: int
    """Number of tensors."""


def storage_key(weights_id: str, digest: str) -> str:
    """Where weights are stored; by their id too, as data sets are."""
    return f"weights/{weights_id}-{digest.removeprefix('sha256:')}.safetensors"


def inspect(path: Path) -> WeightsContent:
    """Check the header of a file, which must describe every byte behind it; raises UploadError."""
    from safetensors import SafetensorError, safe_open  # imported here: it loads NumPy

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise UploadError(
                "", f"the file is not in safetensors format, or its header exceeds {MAX_HEADER_BYTES} bytes"
            )
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        with safe_open(path, framework="np") as opened:
            names = opened.keys()
    except SafetensorError as error:
        raise UploadError("", f"the file is not in safetensors format: {error}") from error
    if not names:
        raise UploadError("", "the file contains no tensors")
    return WeightsContent(f"sha256:{digest}", len(names))
