"""Experiments that tests submit, and how they and their runs stand."""

from collections.abc import Mapping
from typing import Any

import httpx

from fedcore.platform.store import Database, RunRequest, Status, experiments, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from tests.builders.specifications import ONE_RUN, TINY, Document, specification
from tests.builders.transactions import read, write

PENDING: Mapping[tuple[Status, RunRequest], str] = {
    (Status.RUNNING, RunRequest.PAUSE): "pausing",
    (Status.RUNNING, RunRequest.CANCEL): "cancelling",
}


def submit(
    database: Database, document: Mapping[str, Any] = ONE_RUN, *, owner: str = "local", **changes: Any
) -> ExperimentRecord:
    """Store a new experiment, of `document` with `changes`."""
    new = NewExperiment(specification(dict(document), **changes), owner=owner)
    return write(database, experiments.create, new).record


def submit_over_http(http: httpx.Client, document: Document = TINY) -> Document:
    """Submit `document`; the experiment as answered."""
    answer = http.post("/v1/experiments", json=document)
    assert answer.status_code == 201, answer.text
    return answer.json()


def runs_of(database: Database, experiment: ExperimentRecord) -> list[RunRecord]:
    """The runs of an experiment, as they are now."""
    return list(read(database, runs.of_experiment, experiment.id))


def run_of(database: Database, experiment: ExperimentRecord) -> RunRecord:
    """The only run of an experiment, as it is now."""
    (run,) = runs_of(database, experiment)
    return run


def status_of(database: Database, experiment: ExperimentRecord) -> Status:
    """The status of an experiment, as it is now."""
    return read(database, experiments.find, experiment.id).status


def state_of(run: RunRecord) -> str:
    """The state of a run, in a word: its status, or what it is about to do."""
    return PENDING.get((run.status, run.request), run.status.value)
