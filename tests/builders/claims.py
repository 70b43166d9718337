"""Actions of users and workers on a store: one call, one transaction."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest
import torch
from safetensors.torch import save

from fedcore.platform.storage import Storage
from fedcore.platform.store import (
    UNAVAILABLE,
    Database,
    RunRequest,
    Session,
    Status,
    WorkerDirective,
    experiments,
    recovery,
    runs,
)
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.simulation.report import RoundReport
from tests.builders.specifications import Document, specification

WORKER, QUEUE, LEASE_S, ATTEMPTS = "worker-1", "default", 60.0, 3

Given = ParamSpec("Given")
Result = TypeVar("Result")
Query = Callable[Concatenate[Session, Given], Result]

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
"""For what concerns locks of rows, which SQLite does not have: there one transaction writes at a
time.
"""

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is no matter of the database."""

ONE_RUN: Document = {
    "name": "one run",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"dim": 2, "clients": 3}}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 2},
    "rounds": 4,
}
"""One arm, one seed, four rounds."""


def write(
    database: Database, query: Query[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """`query` in a transaction of its own."""
    with database.transaction() as session:
        return query(session, *given, **named)


def read(
    database: Database, query: Query[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """`query` on a snapshot of its own."""
    with database.reading() as session:
        return query(session, *given, **named)


def insisting(act: Callable[[], Result]) -> Result:
    """Result of `act`, tried again as clients do: where this process is held up for long, a lock it
    holds is waited for in vain.
    """
    while True:
        with suppress(*UNAVAILABLE):
            return act()


def submit(database: Database, *, owner: str = "local", **changes: Any) -> ExperimentRecord:
    """A new experiment: one run, unless `changes` to the specification make it more."""
    return write(
        database, experiments.create, NewExperiment(specification(ONE_RUN, **changes), owner=owner)
    ).record


def claim(database: Database, worker: str = WORKER, queue: str = QUEUE, *, lease_s: float = LEASE_S) -> Claim:
    """Take the next run, which must be there; with a negative lease, one that is lost already."""
    taken = write(database, runs.claim, worker, [queue], lease_s)
    assert taken is not None, "no run waits"
    return taken


def report(round: int, **values: Any) -> RoundReport:
    """A round's report with `values`, and plausible others."""
    given: dict[str, Any] = {
        "arm": 0,
        "seed": 0,
        "local_steps": 6,
        "bytes_up": 300,
        "bytes_down": 200,
        "seconds": 0.5,
    }
    return RoundReport(round=round, **(given | values))


def commit(database: Database, held: Claim, count: int = 1, *, lease_s: float = LEASE_S) -> Claim:
    """Commit a slice of `count` rounds; the claim after it."""
    play(database, held, count, lease_s=lease_s)
    return held.at(held.done + count, key(held, count))


def play(database: Database, held: Claim, count: int = 1, **options: Any) -> WorkerDirective:
    """Commit a slice of `count` rounds; what comes next."""
    return record(database, held, [report(held.done + step) for step in range(1, count + 1)], **options)


def record(
    database: Database, held: Claim, reports: Sequence[RoundReport], **options: Any
) -> WorkerDirective:
    """Commit a slice of these rounds; what comes next."""
    given: dict[str, Any] = {"lease_s": LEASE_S, "provenance": {"engine": "vectorised"}} | options
    return write(database, runs.commit_slice, held, reports, checkpoint=key(held, len(reports)), **given)


def key(held: Claim, count: int) -> str:
    """Where the state after `count` more rounds is stored."""
    return f"{held.run_id}/{held.done + count}-{held.fence}.safetensors"


def finish(database: Database, held: Claim) -> None:
    """Play what is left of a run, and end it well."""
    left = held.rounds - held.done
    ended = commit(database, held, left) if left else held
    write(
        database,
        runs.finish,
        ended,
        model=f"{held.run_id}/model.safetensors",
        provenance={"engine": "vectorised"},
    )


def finish_with_models(database: Database, storage: Storage, held: Claim) -> list[str]:
    """Play what is left of a run, and end it with a final model and a best one; returns their keys."""
    keys = [f"{held.run_id}/{name}" for name in ("model.safetensors", "best-model.safetensors")]
    digests = []
    for place, key in enumerate(keys):
        # Other than the metadata, so long that it is sent in pieces.
        model = {"größe": torch.full((700_000,), float(place)), "a": torch.ones(3, dtype=torch.float16)}
        storage.put(key, save(model, {"format": "pt", "run": held.run_id}))
        digests.append(sha256(save(model)).hexdigest())
    provenance = {"engine": "vectorised", "model_sha256": digests[0], "best_model": {"sha256": digests[1]}}
    write(
        database,
        runs.finish,
        commit(database, held, held.rounds - held.done),
        model=keys[0],
        provenance=provenance,
    )
    return keys


def fail(database: Database, held: Claim, error: str = "ValueError: no") -> Status:
    """End a run for good by an error: no attempt is left."""
    return write(database, runs.fail, held, error, 0)


def lose(database: Database) -> list[str]:
    """Take the runs whose leases have expired."""
    return list(write(database, recovery.requeue_expired, recovery.LeaseWatch(LEASE_S), ATTEMPTS))


def the_runs(database: Database, experiment: ExperimentRecord) -> list[RunRecord]:
    """The runs of an experiment, as they are now."""
    return list(read(database, runs.of_experiment, experiment.id))


def the_run(database: Database, experiment: ExperimentRecord) -> RunRecord:
    """The only run of an experiment, as it is now."""
    (run,) = the_runs(database, experiment)
    return run


def status_of(database: Database, experiment: ExperimentRecord) -> Status:
    """Where an experiment stands now."""
    return read(database, experiments.find, experiment.id).status


PENDING: Mapping[tuple[Status, RunRequest], str] = {
    (Status.RUNNING, RunRequest.PAUSE): "pausing",
    (Status.RUNNING, RunRequest.CANCEL): "cancelling",
}


def state_of(run: RunRecord) -> str:
    """Where a run stands, in a word: its status, or what it is about to do."""
    return PENDING.get((run.status, run.request), run.status.value)


def park(database: Database, held: Claim) -> None:
    """Hand back a run that is at its rung or its end, with its model."""
    if held.done < held.until:
        return
    model = f"{held.run_id}/model-{held.fence}.safetensors"
    if held.done == held.rounds:
        write(database, runs.finish, held, model=model, provenance={})
    else:
        write(database, runs.pause_at_rung, held, model=model, provenance={})
