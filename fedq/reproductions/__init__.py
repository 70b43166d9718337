"""A figure or table of a publication, run again: its picture, its numbers, and a verdict on each of
its claims.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedcore import presets
from fedcore.presets import Preset
from fedcore.presets.sheet import SMALL, Sheet
from fedq.client import Client, Results
from fedq.schemas import Claims, Experiment, Run

Follow = Callable[[Client, Sequence[str]], Sequence[Experiment]]
"""Waits until experiments have ended, given their ids."""


class Part(NamedTuple):
    """One panel with what came out of it."""

    preset: Preset
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


def reproduce(client: Client, panels: Sequence[Preset], follow: Follow) -> SheetReproduction:
    """Run `panels` of one sheet, wait for all of them by `follow`, and collect what came out."""
    ended = follow(client, [client.submit(preset.name).id for preset in panels])
    parts = [collect(client, preset, experiment) for preset, experiment in zip(panels, ended, strict=True)]
    first, sheet = panels[0], presets.sheet(panels[0].sheet)
    name = first.sheet if len(panels) == len(sheet.parts) else first.name.removesuffix(f"-{SMALL}")
    return SheetReproduction(name, first.small, sheet, parts)


def collect(client: Client, preset: Preset, experiment: Experiment) -> Part:
    """Collect the results of an experiment that was submitted as `preset`."""
    id = experiment.id
    return Part(preset, experiment, client.runs(id), client.results(id), client.claims(id))
