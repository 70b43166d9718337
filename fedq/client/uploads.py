"""Uploads of data sets: a file, or arrays that are written to one first."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from fedq.client.errors import UnreadableDataError

PIECE_BYTES = 1 << 20
TIMEOUT_S = 600.0
"""The service answers after it has validated the whole file."""

Upload = Mapping[str, Any] | Path | str
"""An NPZ or Parquet file, or the arrays `features`, `label` and, optionally, `client` and `test`.
"""


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """File read in chunks, from the start for each attempt of a request."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        with self._file.open("rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with await anyio.open_file(self._file, "rb") as opened:
            while piece := await opened.read(PIECE_BYTES):
                yield piece


@contextmanager
def file_of(data: Upload) -> Iterator[Path]:
    """Yield the file to send, which may exist only inside the block. Raises UnreadableDataError."""
    if isinstance(data, Mapping):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "arrays.npz"
            _write(data, file)
            yield file
    elif Path(data).is_file():
        yield Path(data)
    else:
        raise UnreadableDataError(f"file not found: {data}")


def _write(arrays: Mapping[str, Any], file: Path) -> None:
    import numpy as np  # heavy, and whoever has arrays has it loaded

    try:
        np.savez(file, allow_pickle=False, **arrays)
    except ValueError as error:
        raise UnreadableDataError(
            f"cannot write the arrays: {error}; they must contain numbers, booleans or strings"
        ) from error


def name_of(data: Upload) -> str:
    """Name of a file. Raises UnreadableDataError for arrays, which have none."""
    if isinstance(data, Mapping):
        raise UnreadableDataError("give the arrays a `name`")
    return Path(data).name
