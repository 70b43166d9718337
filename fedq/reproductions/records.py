"""Recorded outcome of a preset, stored as a file: specification, data, engine and verdicts."""

from datetime import date
from pathlib import Path
from typing import Any

from fedcore.platform.status import Status
from fedq.reproductions import Part
from fedq.schemas import ClaimResult, PublishedTable, Run
from fedq.schemas.base import Schema


class Record(Schema):
    """Outcome of one preset with its verdicts."""

    preset: str
    """Name of the preset."""
    version: int
    """Version of the preset at that time."""
    digest: str
    """Digest of the specification."""
    status: Status
    """Final status of the experiment."""
    fedq: str
    """Version of FedQ that ran it."""
    finished: date | None
    """Date of completion."""
    data: list[str]
    """Descriptions of the data, from the runs."""
    engines: list[str]
    """Engine, precision and device of the runs."""
    rounds: int
    """Rounds of each run."""
    seeds: list[int]
    """Seeds of each arm."""
    unsuccessful: dict[str, dict[Status, int]]
    """Arms with unsuccessful runs, and their runs by status."""
    diverged: dict[str, int]
    """Arms with diverged runs, and the number of those."""
    claims: list[ClaimResult]
    """Claims and their verdicts."""
    published: list[PublishedTable]
    """Published numbers with the measured ones."""


def record(part: Part) -> Record:
    """Return the outcome of one panel."""
    preset, experiment = part.preset, part.experiment
    return Record(
        preset=preset.name,
        version=preset.version,
        digest=preset.digest,
        status=experiment.status,
        fedq=experiment.provenance["fedq"],
        finished=experiment.finished_at.date() if experiment.finished_at else None,
        data=part.data,
        engines=sorted({engine for run in part.runs if (engine := _engine(run))}),
        rounds=experiment.specification["rounds"],
        seeds=experiment.specification["seeds"],
        unsuccessful={arm.name: arm.runs for arm in part.results.arms if set(arm.runs) - {Status.SUCCEEDED}},
        diverged={arm.name: arm.diverged for arm in part.results.arms if arm.diverged},
        claims=part.claims.claims,
        published=part.claims.published,
    )


def write(kept: Record, folder: Path) -> Path:
    """Write a record to `folder` and return its path."""
    path = _path(folder, kept.preset)
    path.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def kept_of(preset: str, folder: Path) -> Record | None:
    """Read the record of a preset; None if there is none."""
    path = _path(folder, preset)
    return Record.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None


def _path(folder: Path, preset: str) -> Path:
    return folder / f"{preset}.json"


def _engine(run: Run) -> str | None:
    made: dict[str, Any] = run.provenance
    return (
        "{engine} in {precision} on {device}".format_map(made)
        if {"engine", "precision", "device"} <= made.keys()
        else None
    )
