"""Folder of an experiment that runs without a service. Several processes, on machines that share a
file system, may compute different runs of it at the same time. It holds files and no database.

| file | content |
| --- | --- |
| `experiment.json` | the experiment, as in a results file; written once |
| `lock` | one byte per run, locked by the process that computes it |
| `proposed.json` | the settings of the trials of a study so far |
| `runs/ARM-SEED/run.json` | the run, as in a results file |
| `runs/ARM-SEED/rounds.jsonl` | its rounds; those after the checkpoint are played again |
| `runs/ARM-SEED/checkpoint.safetensors` | its state, until it has ended |
| `runs/ARM-SEED/model.safetensors` | its final model |
| `runs/ARM-SEED/best-model.safetensors` | the model of its best round, if it is another one |
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedcore import json_documents
from fedcore.errors import FedcoreError, ResourceNotFoundError, SpecificationError
from fedcore.platform.provenance import best_key_beside, best_model_key, model_digests, model_pieces
from fedcore.platform.status import ENDED, Status
from fedcore.platform.storage import FolderStorage
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.spec import ExperimentSpec, stored_spec
from fedcore.spec.search import Study
from fedq.results.documents import write_results
from fedq.schemas import ImportedExperiment, RoundRow

EXPERIMENT, LOCK, PROPOSED, CODE = "experiment.json", "lock", "proposed.json", "code.tar"
RUN, ROUNDS, CHECKPOINT, MODEL = "run.json", "rounds.jsonl", "checkpoint.safetensors", "model.safetensors"
BEST_MODEL = best_key_beside(MODEL)
_CREATION = 1 << 40
"""The byte of `lock` that stands for the folder as a whole."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_SHOWN = 5
"""Differences and runs that a message names."""


class FolderError(FedcoreError):
    """A folder of an experiment that cannot be used; the message says why."""


class RunKey(NamedTuple):
    """A run by its arm and seed."""

    arm: int
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}-{self.seed}"


class LocalRun(BaseModel):
    """A run that has started, as in a results file."""

    model_config = ConfigDict(frozen=True)

    id: str
    arm: int
    seed: int
    status: Status
    diverged_round: int | None = None
    stop_reason: StopReason | None = None
    error: str | None = None
    started_at: AwareDatetime
    finished_at: AwareDatetime | None = None
    provenance: dict[str, Any]


class _StoredRow(RoundRow):
    """A line of `rounds.jsonl`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    extra: dict[str, float | list[float | None] | list[list[float | None]] | None]
    committed_at: AwareDatetime


class _StoredFolder(BaseModel):
    """The content of `experiment.json`."""

    format: Literal["fedq-folder"]
    version: Literal[1]
    experiment: ImportedExperiment


_PROPOSALS = TypeAdapter(list[dict[str, Any]])


def _content(file: Path) -> bytes | None:
    """Read a file; None if there is none. Raises FolderError."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"{file} cannot be read: {error}") from error


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Say in one line which file is not readable, and why; raises FolderError."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FolderError(f"{file} is not readable: {place}{': ' if place else ''}{first['msg']}") from error
    except (SpecificationError, ValueError) as error:
        raise FolderError(f"{file} is not readable: {error}") from error


class RunFolder:
    """Files of one run."""

    def __init__(self, folder: Path, key: RunKey) -> None:
        self.key = key
        self._path = folder / "runs" / str(key)
        self._files = FolderStorage(self._path)

    def read(self) -> LocalRun | None:
        """Return the run; None before it has started. Raises FolderError."""
        file = self._path / RUN
        if (content := _content(file)) is None:
            return None
        with _naming(file):
            run = LocalRun.model_validate(json_documents.load(content))
        if (run.arm, run.seed) != self.key:
            raise FolderError(f"{file} is not readable: it is of run {run.arm}-{run.seed}")
        if run.status in ENDED and run.finished_at is None:
            raise FolderError(f"{file} is not readable: the run has ended without finished_at")
        return run

    def write(self, run: LocalRun) -> None:
        """Replace what is known about the run."""
        self._files.put(RUN, run.model_dump_json(indent=1).encode())

    def start(self, provenance: Mapping[str, Any]) -> LocalRun:
        """Return the run as it starts now."""
        return LocalRun(
            id=new_id("run"),
            arm=self.key.arm,
            seed=self.key.seed,
            status=Status.RUNNING,
            started_at=datetime.now(UTC),
            provenance=dict(provenance),
        )

    def rows(self, *, whole: bool = False) -> list[dict[str, Any]]:
        """Return the rounds so far; of a run that is being computed, perhaps without the last ones.

        A last line without an end is being written, or its process was killed meanwhile: it is left
        out, or an error if the file is to be `whole`. Raises FolderError, which names the line at fault.
        """
        *lines, last = (_content(self._path / ROUNDS) or b"").split(b"\n")
        if last and whole:
            lines.append(last)
        return [self._row(line, number) for number, line in enumerate(lines, 1)]

    def _row(self, line: bytes, number: int) -> dict[str, Any]:
        place = self._path / f"{ROUNDS}, line {number},"
        with _naming(place):
            row: dict[str, Any] = json_documents.load(line)
            found = _StoredRow.model_validate_json(line).round
        if found != number:
            raise FolderError(f"{place} is not readable: it is round {found}, not {number}")
        return row

    def keep_rows(self, count: int) -> None:
        """Remove all rounds but the first `count`; raises FolderError if there are fewer."""
        kept = self.rows()[:count]
        if len(kept) < count:
            raise FolderError(
                f"{self._path / ROUNDS} has {len(kept)} of the {count} rounds of its checkpoint; remove"
                f" {self._path} to run it again"
            )
        self._files.put(ROUNDS, b"".join(map(_line, kept)))

    def commit(self, reports: Iterable[RoundReport], checkpoint: bytes) -> None:
        """Append rounds, and then store the state after the last of them."""
        moment = datetime.now(UTC).isoformat()
        with (self._path / ROUNDS).open("ab") as file:
            file.writelines(_line(report.row() | {"committed_at": moment}) for report in reports)
            file.flush()
            os.fsync(file.fileno())
        self._files.put(CHECKPOINT, checkpoint)

    def checkpoint(self) -> bytes | None:
        """Return the last stored state; None if there is none."""
        return _content(self._path / CHECKPOINT)

    def finish(self, run: LocalRun, models: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Store the end of a run, and with it its models by file; the checkpoint has served."""
        for name, data in models.items():
            self._files.put(name, data)
        if models and BEST_MODEL not in models:
            self._files.delete(BEST_MODEL)  # of an earlier rung
        self.write(run)
        if run.status is Status.SUCCEEDED:
            self._files.delete(CHECKPOINT)

    def model(self, *, best: bool = False) -> bytes:
        """Return the final model, or the best one; raises FolderError if there is none, or it is damaged."""
        run = self.read()
        try:
            key = best_model_key(MODEL, run.provenance) if best and run is not None else MODEL
            digests = {} if run is None else model_digests(MODEL, run.provenance)
        except (AttributeError, LookupError, TypeError) as error:
            raise FolderError(f"{self._path / RUN} is not readable: the models in its provenance") from error
        if key is None:
            raise FolderError(f"no best model was kept of the run in {self._path}")
        content = _content(self._path / key)
        if content is None:
            raise FolderError(f"the run in {self._path} has no model yet")
        try:
            return b"".join(model_pieces(io.BytesIO(content), key, digests.get(key)))
        except ResourceNotFoundError as error:
            raise FolderError(
                f"the run in {self._path} has a damaged model: {key} is not what it stored"
            ) from error

    def reports(self) -> list[RoundReport]:
        """Return the rounds as the simulation reported them; what was not finite is absent."""
        run, rows = self.read(), self.rows()
        found = [_report(self.key, row) for row in rows]
        if run is not None and found:
            stopped = None if run.stop_reason is StopReason.RUNG else run.stop_reason
            ending = {"diverged": run.diverged_round is not None, "stopped": stopped}
            found[-1] = _report(self.key, rows[-1], **ending)
        return found


def _report(key: RunKey, row: Mapping[str, Any], **ending: Any) -> RoundReport:
    values = {name: value for name, value in row.items() if name != "committed_at"}
    return RoundReport(arm=key.arm, seed=key.seed, **values, **ending)


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class ExperimentFolder:
    """The experiment in `path`."""

    def __init__(self, path: Path) -> None:
        """Raises FolderError if there is none."""
        self.path = path
        try:
            content = (path / EXPERIMENT).read_bytes()
        except OSError as error:
            raise FolderError(f"{path} is not a folder of `fedq run`: {error}") from error
        with _naming(path / EXPERIMENT):
            document = json_documents.load(content)
            _StoredFolder.model_validate(document)
        self.experiment: dict[str, Any] = document["experiment"]

    @classmethod
    def open(
        cls, path: Path, spec: ExperimentSpec, provenance: Mapping[str, Any], code: bytes | None = None
    ) -> ExperimentFolder:
        """Create the folder of this experiment, or return the one that is there. `code` is the archive of its
        code bundle.

        Raises FolderError if `path` holds something else or another specification.
        """
        document = spec.model_dump(mode="json")
        path.mkdir(parents=True, exist_ok=True)
        with (path / LOCK).open("ab") as file:
            _lock(file, _CREATION, wait=True)
            if not (path / EXPERIMENT).exists():
                _create(path, document, spec, provenance)
        found = cls(path)
        differences = list(_differences("", found.experiment["specification"], document))
        if differences:
            more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            raise FolderError(
                f"{path} holds an experiment with another specification: {'; '.join(differences[:_SHOWN])}"
                f"{more}. Use the same specification, or another folder"
            )
        if code is not None and not (path / CODE).exists():
            FolderStorage(path).put(CODE, code)
        return found

    @property
    def spec(self) -> ExperimentSpec:
        """The specification, with the settings of the trials of a study that were proposed so far.

        Raises FolderError.
        """
        with _naming(self.path / EXPERIMENT):
            spec = stored_spec(self.experiment["specification"])
        if not isinstance(spec.search, Study) or not (proposed := self.proposed()):
            return spec
        return spec.model_copy(
            update={"search": spec.search.model_copy(update={"proposed": tuple(proposed)})}
        )

    def proposed(self) -> list[dict[str, Any]]:
        """Return the settings of the trials of a study so far."""
        file = self.path / PROPOSED
        if (content := _content(file)) is None:
            return []
        with _naming(file):
            return _PROPOSALS.validate_json(content)

    def propose(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Store the settings of all trials so far."""
        FolderStorage(self.path).put(PROPOSED, json.dumps(settings).encode())

    def run(self, key: RunKey) -> RunFolder:
        """Return the files of a run."""
        return RunFolder(self.path, key)

    def run_keys(self) -> list[RunKey]:
        """Return the runs in order of arms and seeds."""
        spec = self.spec
        return [RunKey(arm.index, seed) for arm in spec.arms() for seed in spec.seeds]

    @contextmanager
    def locked(self, places: Sequence[int]) -> Iterator[None]:
        """Hold the runs at these positions of `run_keys`; raises FolderError if another
        process does.
        """
        # POSIX locks also hold between machines that share the folder, and end with the process.
        with (self.path / LOCK).open("ab") as file:
            for place in places:
                try:
                    _lock(file, place, wait=False)
                except BlockingIOError as error:
                    raise FolderError(
                        f"another process computes run {self.run_keys()[place]} of {self.path}; wait for"
                        " it, or give each process another --part"
                    ) from error
            yield


def archive(path: Path) -> bytes:
    """Return the content of the results file of a finished experiment.

    It depends on the folder only, so that a service recognises what it has imported before. Raises
    FolderError.
    """
    folder = ExperimentFolder(path)
    keys = folder.run_keys()
    found = {key: folder.run(key).read() for key in keys}
    runs = [run for run in found.values() if run is not None and run.status in ENDED]
    missing = [str(key) for key, run in found.items() if run is None or run.status not in ENDED]
    if missing:
        more = ", ..." if len(missing) > _SHOWN else ""
        raise FolderError(
            f"{len(missing)} of {len(keys)} runs in {path} have not ended (ARM-SEED: "
            f"{', '.join(missing[:_SHOWN])}{more}); repeat the command that computes them"
        )
    specification = folder.spec.model_dump(mode="json")
    ended = max(run.finished_at for run in runs if run.finished_at is not None)
    file = io.BytesIO()
    write_results(
        file,
        folder.experiment | {"specification": specification},
        (
            (
                run.model_dump(mode="json"),
                folder.run(RunKey(run.arm, run.seed)).rows(whole=run.status is Status.SUCCEEDED),
            )
            for run in runs
        ),
        ended,
        _content(path / CODE),
    )
    return file.getvalue()


def new_id(prefix: str) -> str:
    """Return a new identifier."""
    return f"{prefix}_{secrets.token_hex(13)}"


def _create(
    path: Path, document: Mapping[str, Any], spec: ExperimentSpec, provenance: Mapping[str, Any]
) -> None:
    others = sorted(file.name for file in path.iterdir() if file.name != LOCK)
    if others:
        raise FolderError(
            f"{path} is not a folder of `fedq run`, and not empty: it contains {', '.join(others[:_SHOWN])}"
        )
    experiment = {
        "id": new_id("exp"),
        "name": spec.name,
        "tags": list(spec.tags),
        "created_at": datetime.now(UTC).isoformat(),
        "specification": document,
        "provenance": dict(provenance),
    }
    content = {"format": "fedq-folder", "version": 1, "experiment": experiment}
    FolderStorage(path).put(EXPERIMENT, json.dumps(content, indent=1, ensure_ascii=False).encode())


def _lock(file: IO[bytes], place: int, *, wait: bool) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise FolderError(
            f"the file system of {file.name} does not support locks (on Lustre, mount it with `flock`)"
        ) from error


def _differences(path: str, stored: Any, given: Any) -> Iterator[str]:
    """Yield the fields that differ, with both values."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for name in {**stored, **given}:
            yield from _differences(f"{path}.{name}" if path else name, stored.get(name), given.get(name))
    elif stored != given:
        yield f"{path} is {json.dumps(stored)} there, and {json.dumps(given)} here"
