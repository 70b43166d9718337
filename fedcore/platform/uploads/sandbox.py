"""Uploads are checked in a process of their own, which a file made to break its reader may break,
and whose memory ends with it.

pyarrow ends its process on some damaged files, and takes the word of a Parquet page for how much it
unpacks to.
"""

import json
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedcore.data.description import UploadedContent
from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits

REFUSED = 3
"""Exit code of a process that found something wrong with an upload."""
TIMEOUT_S = 600.0
_LIBRARIES_BYTES = 4 << 30
"""Address space of libraries, most of which is never used, and of what their allocators set aside."""
LOADED_BYTES = 200 << 20
"""Memory of the libraries, and of what they unpack at a time."""
PEAK_FACTOR = 5
"""Memory by the size of the arrays: int8 features are there as they came and, four times as large,
as float32.
"""
SAMPLE_BYTES = 32
"""Memory for each sample beside its features: labels and clients as 64-bit integers, and what sorts
them.
"""

log = logging.getLogger(__name__)


class UploadInfo(NamedTuple):
    """Summary of a valid upload."""

    content: UploadedContent
    client_sizes: dict[str, Any] | None
    """The fields of `canonical.ClientSizes`."""


def read_in_subprocess(
    source: BinaryIO,
    target: Path,
    limits: UploadLimits,
    timeout_s: float = TIMEOUT_S,
    interpreter: str = sys.executable,
) -> UploadInfo:
    """Check the upload in the file `source` and write what is kept of it to `target`.

    The process is one of the Python `interpreter`.

    Raises UploadError.
    """
    source.flush()
    source.seek(0)
    command = [interpreter, "-m", "fedcore.platform.uploads", str(target), *map(str, limits)]
    # A thread of arithmetic reserves memory, and here is none to share.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(  # noqa: S603
            command, stdin=source, capture_output=True, env=environment, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UploadError("", f"reading it took longer than {timeout_s:g} seconds") from error
    if ended.returncode == REFUSED:
        flaw = json.loads(ended.stdout)
        raise UploadError(flaw["name"], flaw["detail"])
    if ended.returncode != 0:
        log.warning(
            "reading an upload ended with code %d: %s",
            ended.returncode,
            ended.stderr[-2_000:].decode(errors="replace"),
        )
        raise UploadError("", "cannot be read: it is damaged, or needs more memory than uploads may use")
    answer = json.loads(ended.stdout)
    return UploadInfo(UploadedContent.model_validate(answer["content"]), answer["client_sizes"])


def peak_bytes(limits: UploadLimits) -> int:
    """The most memory that the process takes for an upload within `limits`."""
    return LOADED_BYTES + PEAK_FACTOR * limits.bytes + SAMPLE_BYTES * limits.samples


def bound_memory(limits: UploadLimits) -> None:
    """Let this process take no more memory than an upload within `limits` asks for."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _LIBRARIES_BYTES + peak_bytes(limits)
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )
