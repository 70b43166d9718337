"""What came out of a preset, as it is kept in a file: what was run, on what, with which
verdicts.
"""

from datetime import date
from pathlib import Path
from typing import Any

from fedcore.platform.status import Status
from fedq.reproductions import Part
from fedq.schemas import ClaimResult, PublishedTable, Run
from fedq.schemas.base import Schema


class Record(Schema):
    """One preset's runs and their verdicts."""

    preset: str
    """Its name."""
    version: int
    """Its version then."""
    digest: str
    """Of the specification that was run."""
    status: Status
    """How the experiment ended."""
    fedq: str
    """The version of FedQ that ran it."""
    finished: date | None
    """When it ended."""
    data: list[str]
    """What the data really are, as each run says."""
    engines: list[str]
    """Engine, precision and device of the runs."""
    rounds: int
    """Of each run."""
    seeds: list[int]
    """Of each arm."""
    unsuccessful: dict[str, dict[Status, int]]
    """The arms of which not every run succeeded, with their runs by status."""
    diverged: dict[str, int]
    """The arms of which a run's model left the finite numbers, with the number of those runs."""
    claims: list[ClaimResult]
    """What was claimed, and whether it holds."""
    published: list[PublishedTable]
    """What was published, beside what came out."""


def record(part: Part) -> Record:
    """What came out of one panel."""
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
    """Keep it in `folder`; the file."""
    path = _path(folder, kept.preset)
    path.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def kept_of(preset: str, folder: Path) -> Record | None:
    """What is kept of a preset; None where nothing is."""
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
