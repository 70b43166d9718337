"""A figure or table of a publication, run again: its picture, its numbers, and a verdict on each of its claims."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from api.client import Client, Results
from api.schemas import Claims, Experiment, Run
from fedcore import presets
from fedcore.presets import Preset
from fedcore.presets.sheet import Sheet

Follow = Callable[[Client, str], Experiment]


class Part(NamedTuple):
    """One panel with what came out of it."""

    preset: Preset
    experiment: Experiment
    runs: Sequence[Run]
    results: Results
    claims: Claims

    @property
    def title(self) -> str:
        """What stands above the panel; of a small form with the data it really ran on, which may stand in for others."""
        title = presets.sheet(self.preset.sheet).parts[self.preset.panel].title
        data = ", ".join(self.data)
        return f"{title} (small form: {data})" if self.preset.small and data not in title else title

    @property
    def data(self) -> list[str]:
        """What the data really are, as the runs say."""
        return sorted({run.provenance["data_source"] for run in self.runs if "data_source" in run.provenance})


class Reproduction(NamedTuple):
    """A sheet with what came out of its panels."""

    name: str
    small: bool
    sheet: Sheet
    parts: Sequence[Part]

    @property
    def file_stem(self) -> str:
        """What its files are called."""
        return self.name + ("-small" if self.small else "")


def reproduce(client: Client, name: str, follow: Follow, *, small: bool) -> Reproduction:
    """Run every panel of the sheet `name`, wait for all of them by `follow`, and collect what came out.

    Raises PresetNotFoundError.
    """
    sheet, panels = presets.sheet(name), presets.presets_of(name, small=small)
    submitted = [(preset, client.submit(preset.name)) for preset in panels]
    ended = [(preset, follow(client, experiment.id)) for preset, experiment in submitted]
    return Reproduction(name, small, sheet, [collect(client, preset, experiment) for preset, experiment in ended])


def collect(client: Client, preset: Preset, experiment: Experiment) -> Part:
    """What came out of an experiment that was submitted as `preset`."""
    id = experiment.id
    return Part(preset, experiment, client.runs(id), client.results(id), client.claims(id))
