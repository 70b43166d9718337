"""Files of traces in FedScale's formats, as JSON: traces of devices and of their availability."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedcore import json_documents
from fedcore.errors import DataUnavailableError

FileName = Annotated[str, Field(max_length=100, pattern=r"^\w[\w.-]*$")]
FileDigest = Annotated[str | None, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


def find_digest(path: Path, wanted: str | None, pointer: str, original: str) -> str:
    """Digest of the trace at `path`, which the field `pointer` names and FedScale calls `original`.

    Raises DataUnavailableError if the file is missing, or is not the `wanted` one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataUnavailableError(
            f"the trace of `{pointer}` cannot be read from {path} ({error}); put FedScale's {original} there,"
            " as JSON, or set FEDQ_DATA_DIR to where it is"
        ) from error
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if wanted not in {None, found}:
        raise DataUnavailableError(
            f"{path} has the digest {found}, not that of `{pointer}.digest`; put the original in its place,"
            " or correct the digest"
        )
    return found


def read_devices(path: Path, what: str, fields: str) -> Mapping[str, Any]:
    """The devices of the trace at `path`, at least one.

    Raises DataUnavailableError if it is not a dictionary of devices, each with `fields`, as a file
    that is `what` should be.
    """
    try:
        devices = json_documents.load(path.read_bytes())
    except ValueError as error:
        raise DataUnavailableError(
            f"{path} is not {what} in JSON ({error}); convert FedScale's pickle as"
            " docs/simulated-time.md says"
        ) from error
    if not isinstance(devices, Mapping) or not devices:
        raise DataUnavailableError(f"{path} is not {what}: give a dictionary of devices, each with {fields}")
    return devices
