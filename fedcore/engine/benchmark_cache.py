"""Remember which engine was fastest, from run to run, in the process and on disk."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedcore.engine.engines import EngineName

MOST = 500
"""Most entries kept on disk: the latest."""


class BenchmarkResult(BaseModel):
    """The outcome of one measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineName
    seconds: dict[EngineName, float]
    """Per local step."""
    of: dict[str, Any]
    """Description of the measurement, for readers of the file."""


class _File(BaseModel):
    entries: dict[str, BenchmarkResult]


class BenchmarkCache:
    """Benchmark results by key. The file is a convenience: no problem with it is ever an error."""

    def __init__(self, path: Path | None) -> None:
        """Keep entries at `path`, or in this process only."""
        self._path = path
        self._entries: dict[str, BenchmarkResult] = {}
        self._rounds: dict[str, float] = {}

    def get(self, what: Mapping[str, Any]) -> BenchmarkResult | None:
        """Return the result known for `key`."""
        key = _key(what)
        if key not in self._entries:
            self._entries = _read(self._path) | self._entries
        return self._entries.get(key)

    def round_seconds(self, what: Mapping[str, Any], measure: Callable[[], float]) -> float:
        """Return the time of a round with the presumed engine: measured once, and not stored on
        disk.
        """
        key = _key(what)
        if key not in self._rounds:
            self._rounds[key] = measure()
        return self._rounds[key]

    def put(
        self, what: Mapping[str, Any], engine: EngineName, seconds: Mapping[EngineName, float]
    ) -> BenchmarkResult:
        """Store a result; if another process has measured the same meanwhile, its result stands."""
        key, known = _key(what), _read(self._path)
        self._entries = known | self._entries
        entry = self._entries.setdefault(
            key, BenchmarkResult(engine=engine, seconds=dict(seconds), of=dict(what))
        )
        if key not in known:
            _write(self._path, known | {key: entry})
        return entry


@cache
def benchmark_cache_at(path: Path | None) -> BenchmarkCache:
    """The process's cache, stored at `path`."""
    return BenchmarkCache(path)


def _key(what: Mapping[str, Any]) -> str:
    return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _read(path: Path | None) -> dict[str, BenchmarkResult]:
    if path is None:
        return {}
    try:
        return _File.model_validate_json(path.read_bytes()).entries
    except (OSError, ValidationError):
        return {}


def _write(path: Path | None, entries: Mapping[str, BenchmarkResult]) -> None:
    """Write the file whole or not at all: a reader never sees half of it.

    Of two concurrent writers one wins, and the other measures again.
    """
    if path is None or (path.exists() and not path.is_file()):
        return
    newest = dict(list(entries.items())[-MOST:])
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        written = Path(name)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(_File(entries=newest).model_dump_json(indent=1))
            written.replace(path)
        except OSError:
            written.unlink()
            raise
