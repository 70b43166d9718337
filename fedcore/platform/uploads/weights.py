"""Uploaded files of pretrained networks: weights in safetensors format, checked without reading the
tensors, and configurations and tokenizers in JSON.
"""

import hashlib
from pathlib import Path
from typing import Literal, NamedTuple

from fedcore import json_documents
from fedcore.errors import UploadError

MAX_HEADER_BYTES = 16 << 20
"""Maximum size of the JSON before the tensors: some 100,000 tensors."""
MAX_CONFIGURATION_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 64 << 20
"""A tokenizer of 260,000 tokens has some 30 MB."""

Content = Literal["weights", "configuration", "tokenizer"]
SUFFIXES: dict[str, str] = {"weights": "safetensors", "configuration": "json", "tokenizer": "json"}
"""Suffixes of the names by which runs find files of each content."""


class UploadedFile(NamedTuple):
    """Facts of an uploaded file."""

    digest: str
    """`sha256:` and the SHA-256 of the file."""
    content: Content
    tensors: int
    """Number of tensors; 0 unless the content is weights."""


def storage_key(weights_id: str, digest: str) -> str:
    """Where a file is stored, whatever its content; by its id too, as data sets are."""
    return f"weights/{weights_id}-{digest.removeprefix('sha256:')}.safetensors"


def inspect(path: Path) -> UploadedFile:
    """Check a file; raises UploadError.

    The header of weights must describe every byte behind it. A configuration is JSON with a
    `model_type`. A tokenizer is not parsed: JSON can take 30 times its size in memory.
    """
    with path.open("rb") as file:
        beginning = file.read(8)
        file.seek(0)
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    header_bytes = int.from_bytes(beginning, "little")
    if header_bytes > MAX_HEADER_BYTES and beginning.lstrip().startswith(b"{"):
        return UploadedFile(digest, _json_content(path), 0)
    return UploadedFile(digest, "weights", _count_tensors(path, header_bytes))


def _count_tensors(path: Path, header_bytes: int) -> int:
    from safetensors import SafetensorError, safe_open  # imported here: it loads NumPy

    if header_bytes > MAX_HEADER_BYTES:
        raise UploadError(
            "",
            "the file is neither in safetensors format nor JSON, or its header exceeds"
            f" {MAX_HEADER_BYTES} bytes",
        )
    try:
        with safe_open(path, framework="np") as opened:
            names = opened.keys()
    except SafetensorError as error:
        raise UploadError("", f"the file is not in safetensors format: {error}") from error
    if not names:
        raise UploadError("", "the file contains no tensors")
    return len(names)


def _json_content(path: Path) -> Content:
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise UploadError("", f"{size} bytes of JSON exceed the limit of {MAX_TOKENIZER_BYTES}")
    content = path.read_bytes()
    if size <= MAX_CONFIGURATION_BYTES:
        try:
            document = json_documents.load(content)
        except ValueError as error:
            raise UploadError("", f"the file is not JSON: {error}") from error
        if isinstance(document.get("model_type"), str):
            return "configuration"
    if b'"vocab"' in content:
        return "tokenizer"
    raise UploadError(
        "", "the JSON is neither a config.json (it has no `model_type`) nor a tokenizer.json (no `vocab`)"
    )
