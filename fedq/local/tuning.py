"""`fedq.tune`: each arm of an experiment tuned with the same budget, then compared on seeds of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedcore.platform.provenance import describe_code
from fedcore.platform.storage import FolderStorage
from fedcore.settings import settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.tuning import (
    TriedSettings,
    TunedArm,
    Tuning,
    check_arms,
    list_studies,
    tune_arm,
    tuned_specification,
)
from fedq.local.experiment import LocalExperiment, LocalProgress, results
from fedq.local.folder import ExperimentFolder, FolderError, LocalRun
from fedq.local.rates import add_rates
from fedq.results.confirmation import CONFIRMATION
from fedq.results.selection import explain_tuning
from fedq.results.tuning import budget_text, tuned_text
from fedq.schemas import Results

TUNED, STUDIES, FINAL = "tuned.json", "studies", "final"
Tell = Callable[[str, LocalProgress], None]
"""Told of the progress of each experiment, by its name."""


class Tuned(BaseModel):
    """An experiment whose arms were tuned with the same budget."""

    model_config = ConfigDict(frozen=True)

    format: Literal["fedq-tuned"] = "fedq-tuned"
    version: Literal[1] = 1
    budget: str
    """The budget of each arm, in words."""
    selection: str | None
    """Says that test samples selected the settings; None if they did not."""
    arms: tuple[TunedArm, ...]
    """The arms in order, with what was tuned."""


class TunedResults(Tuned):
    """Tuned arms with their results on seeds that tuned nothing."""

    results: Results


def tune(
    spec: ExperimentSpec,
    tuning: Tuning,
    output: Path,
    *,
    processes: int | None = None,
    code: Path | None = None,
    tell: Tell = lambda *_: None,
) -> TunedResults:
    """Tune each arm of `spec` by a study of its own with the same budget, and compare the arms as tuned
    on the seeds of `spec`, paired.

    All runs are in the folder `output`, where the same call continues after an interruption: a folder of
    `fedq run` for each study, in `studies`, and one for the comparison, `final`. They are computed by
    `processes` processes (default: one for each core, or GPU), which load the components in the folder
    `code`. A script calls it below `if __name__ == "__main__"`.

    Raises SpecificationError, TuningError if no trial of an arm has a value, FolderError if `output` holds
    something else, and ProcessesError if a process was killed.
    """
    check_arms(spec)

    def run(place: Path, wanted: ExperimentSpec) -> LocalExperiment:
        began = datetime.now(UTC)
        folder = ExperimentFolder.open(output / place, wanted, describe_code())
        local = LocalExperiment(folder, processes=processes, code=code, tell=partial(tell, wanted.name))
        local.run()
        add_rates(settings().home, local.rates(began))
        return local

    def play(name: str, study: ExperimentSpec) -> Sequence[TriedSettings]:
        return run(Path(STUDIES, name), study).trials

    studies = list_studies(spec, tuning)
    arms = tuple(tune_arm(spec, tuning, one, play) for one in studies)
    first = next(one.study for one in studies if one.study is not None)
    tuned = Tuned(
        budget=budget_text(tuning),
        selection=explain_tuning(first.model_dump(mode="json")),
        arms=arms,
    )
    said = [tuned.budget, *([tuned.selection] if tuned.selection else []), *map(tuned_text, arms)]
    final = tuned_specification(spec, arms, "\n".join(said), [CONFIRMATION])
    storage = FolderStorage(output)
    storage.put(TUNED, tuned.model_dump_json(indent=1).encode())
    document = final.model_dump(mode="json")
    storage.put(f"{FINAL}.json", json.dumps(document, indent=1, ensure_ascii=False).encode())
    run(Path(FINAL), final)
    return read_tuned(output)


def read_tuned(output: Path) -> TunedResults:
    """Tuned arms and their results in a folder of `tune`; raises FolderError."""
    try:
        tuned = Tuned.model_validate_json((output / TUNED).read_bytes())
    except (OSError, ValueError) as error:
        raise FolderError(f"{output} is not a folder of `fedq tune` whose arms are tuned: {error}") from error
    return TunedResults(**dict(tuned), results=results(ExperimentFolder(output / FINAL)))


def final_runs(output: Path) -> list[LocalRun]:
    """The runs of the comparison that have started."""
    folder = ExperimentFolder(output / FINAL)
    found = (folder.run(key).read() for key in folder.run_keys())
    return [run for run in found if run is not None]
