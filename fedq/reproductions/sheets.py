"""Reproduction of the figures and tables of papers."""

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, NamedTuple

from fedcore import presets
from fedcore.platform.status import Status
from fedcore.presets import PresetSpec
from fedcore.presets.sheet import SMALL, Sheet
from fedq.client import Client, Results
from fedq.schemas import ClaimResult, Claims, Experiment, PublishedTable, Run
from fedq.schemas.base import Schema

Follow = Callable[[Client, Sequence[str]], Sequence[Experiment]]
"""Waits until experiments have ended, given their ids."""


class Part(NamedTuple):
    """One panel with what came out of it."""

    preset: PresetSpec
    experiment: Experiment
    runs: Sequence[Run]
    results: Results
    claims: Claims

    @property
    def title(self) -> str:
        """Title of the panel; of the small version with the data of its runs, which may replace the
        original's.
        """
        title = presets.sheet(self.preset.sheet).parts[self.preset.panel].title
        data = ", ".join(self.data)
        return f"{title} (small form: {data})" if self.preset.small and data not in title else title

    @property
    def data(self) -> list[str]:
        """Descriptions of the data, from the runs."""
        return sorted({run.provenance["data_source"] for run in self.runs if "data_source" in run.provenance})


class SheetReproduction(NamedTuple):
    """A sheet with what came out of its panels."""

    name: str
    small: bool
    sheet: Sheet
    parts: Sequence[Part]

    @property
    def file_stem(self) -> str:
        """File name of the report and figure, without suffix."""
        return self.name + (f"-{SMALL}" if self.small else "")


def reproduce_sheet(client: Client, panels: Sequence[PresetSpec], follow: Follow) -> SheetReproduction:
    """Run `panels` of one sheet, wait for all of them by `follow`, and collect what came out."""
    ended = follow(client, [client.submit(preset.name).id for preset in panels])
    parts = [collect(client, preset, experiment) for preset, experiment in zip(panels, ended, strict=True)]
    first, sheet = panels[0], presets.sheet(panels[0].sheet)
    name = first.sheet if len(panels) == len(sheet.parts) else first.name.removesuffix(f"-{SMALL}")
    return SheetReproduction(name, first.small, sheet, parts)


def collect(client: Client, preset: PresetSpec, experiment: Experiment) -> Part:
    """Collect the results of an experiment that was submitted as `preset`."""
    id = experiment.id
    return Part(preset, experiment, client.runs(id), client.results(id), client.claims(id))


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


def _engine(run: Run) -> str | None:
    made: dict[str, Any] = run.provenance
    return (
        "{engine} in {precision} on {device}".format_map(made)
        if {"engine", "precision", "device"} <= made.keys()
        else None
    )
