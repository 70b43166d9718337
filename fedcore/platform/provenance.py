"""Provenance: the code that accepted an experiment, keys of the provenance of runs, and stored
models, which must be the models that it names.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO

from fedcore import json_documents
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.status import Status
from fedcore.platform.version import find_commit, find_release
from fedcore.statistics.poor_runs import MeasureEnds, RunWarning, WarningKind, find_warning

ENGINE_CHOICE = "engine_choice"
"""Key of a run's provenance: its engine, and how it was chosen."""
MODEL_SHA256 = "model_sha256"
"""Key of a run's provenance: the digest of its final model."""
BEST_MODEL = "best_model"
"""Key of a run's provenance: its best evaluated round, with the measure and the digest of the model."""
DIVERGENCE = "divergence"
"""Key of a run's provenance: where the first number was not finite, of a run that diverged."""
CHANCE_ACCURACY = "chance_accuracy"
"""Key of a run's provenance: the share of the most frequent test label, where it is known."""
WARNING = "warning"
"""Key of a run's provenance: the `kind` and `detail` of a `RunWarning`, of a run that has one."""
PACKAGES = "packages"
"""Key of a run's provenance: versions and digests of the installed packages that it used, by name."""
PIECE_BYTES = 1 << 20
MOST_HEADER_BYTES = 100_000_000
"""Longest header that safetensors reads."""


def warning_entry(ends: Mapping[str, MeasureEnds], chance: float | None) -> dict[str, Any]:
    """Return the entry of a run's provenance that holds the warning of `find_warning`; empty without one."""
    found = find_warning(ends, chance)
    return {} if found is None else {WARNING: found._asdict()}


def run_warning(
    status: Status, diverged_round: int | None, provenance: Mapping[str, Any]
) -> RunWarning | None:
    """Return the reason to distrust a run that has succeeded; None if none is known."""
    if status is not Status.SUCCEEDED:
        return None
    if diverged_round is not None:
        place = provenance.get(DIVERGENCE)
        detail = f"diverged in round {diverged_round:,}" + (f": {place}" if place else "")
        return RunWarning(WarningKind.DIVERGED, detail)
    stored = provenance.get(WARNING)
    return None if stored is None else RunWarning(WarningKind(stored["kind"]), stored["detail"])


def describe_code() -> dict[str, Any]:
    """Return the version of FedQ, for the provenance of an experiment."""
    return {"fedq": find_release(), "commit": find_commit()}


def best_model_key(model: str, provenance: Mapping[str, Any]) -> str | None:
    """Return where the best model of a run is stored whose final one is at `model`; None if none is kept.

    A model that is both is stored once.
    """
    best = provenance.get(BEST_MODEL)
    if best is None:
        return None
    return model if best["sha256"] == provenance.get(MODEL_SHA256) else best_key_beside(model)


def best_key_beside(model: str) -> str:
    """Return the storage key for the best model, if it is not the final one at `model`."""
    folder, slash, name = model.rpartition("/")
    return f"{folder}{slash}best-{name}"


def model_digests(model: str | None, provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the digest of each model that is stored of a run, by storage key, where its final one is at
    `model`; None where it was not noted.
    """
    if model is None:
        return {}
    digests = {model: provenance.get(MODEL_SHA256)}
    best = best_model_key(model, provenance)
    return digests if best in (None, model) else {**digests, best: provenance[BEST_MODEL]["sha256"]}


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file, then close it."""
    with file:
        yield from iter(lambda: file.read(PIECE_BYTES), b"")


def model_pieces(file: BinaryIO, key: str, digest: str | None) -> Iterator[bytes]:
    """Yield the content of the model at `key`, a safetensors file, and close it. `digest` is the SHA-256 of
    the file without its metadata.

    Raises ResourceNotFoundError if it has another one: before the first piece where the file has another
    length than its header says, and always before the last.
    """
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if digest is None:
            yield from pieces_of(file)
            return
        length = file.read(8)
        header = file.read(min(int.from_bytes(length, "little"), MOST_HEADER_BYTES))
        try:
            entries = json_documents.load(header)
            entries.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise _damaged(key) from None
        if size != len(length) + len(header) + end:
            raise _damaged(key)
        # As safetensors writes it.
        plain = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        plain += b" " * (-len(plain) % 8)
        found = hashlib.sha256(len(plain).to_bytes(8, "little") + plain)
        piece = length + header
        while following := file.read(PIECE_BYTES):
            found.update(following)
            yield piece
            piece = following
        if found.hexdigest() != digest:
            raise _damaged(key)
        yield piece


def _damaged(key: str) -> ResourceNotFoundError:
    return ResourceNotFoundError(
        f"{key} in the storage is damaged: it is not the model that the run has stored"
    )
