"""Claims of workers: taken, committed, ended and lost, each in one transaction."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import delete

from fedcore.platform.store import Database, Status, WorkerDirective, curves, recovery, runs
from fedcore.platform.store.blocks import append_rows
from fedcore.platform.store.leases import Claim, Claimant
from fedcore.platform.store.tables import BlockRecord
from fedcore.simulation.report import RoundReport
from tests.builders.specifications import Document
from tests.builders.transactions import write

WORKER, QUEUE, LEASE_S, ATTEMPTS = "worker-1", "default", 60.0, 3

MADE_WITH: Document = {"engine": "vectorised"}
"""Provenance of a run."""

Rounds = int | Sequence[RoundReport]
"""The number of the rounds to commit, whose reports are then made up, or their reports."""


def claimant(worker: str = WORKER, *queues: str, **has: Any) -> Claimant:
    """A worker of these queues (default: QUEUE)."""
    return Claimant(worker, queues or (QUEUE,), **has)


def claim(database: Database, worker: str = WORKER, queue: str = QUEUE, *, lease_s: float = LEASE_S) -> Claim:
    """Take the next run, which must be there; with a negative lease, one that is lost already."""
    taken = write(database, runs.claim, claimant(worker, queue), lease_s)
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


def checkpoint_key(held: Claim, count: int) -> str:
    """Storage key of the state after `count` more rounds."""
    return f"{held.run_id}/{held.done + count}-{held.fence}.safetensors"


def commit(database: Database, held: Claim, rounds: Rounds = 1, *, lease_s: float = LEASE_S) -> Claim:
    """Commit a slice of `rounds`; the claim after it."""
    count = rounds if isinstance(rounds, int) else len(rounds)
    commit_slice(database, held, rounds, lease_s=lease_s)
    return held.at(held.done + count, checkpoint_key(held, count))


def commit_slice(database: Database, held: Claim, rounds: Rounds = 1, **options: Any) -> WorkerDirective:
    """Commit a slice of `rounds`; what the worker is to do next."""
    if isinstance(rounds, int):
        rounds = [report(held.done + step) for step in range(1, rounds + 1)]
    given: dict[str, Any] = {"lease_s": LEASE_S, "provenance": MADE_WITH} | options
    return write(
        database, runs.commit_slice, held, rounds, checkpoint=checkpoint_key(held, len(rounds)), **given
    )


def finish(database: Database, held: Claim) -> None:
    """Commit the rounds that are left of a run, and end it well."""
    left = held.rounds - held.done
    end_run(
        database, commit(database, held, left) if left else held, model=f"{held.run_id}/model.safetensors"
    )


def end_run(
    database: Database,
    held: Claim,
    *,
    model: str | None = None,
    diverged_round: int | None = None,
    provenance: Document = MADE_WITH,
) -> None:
    """End a run well after the rounds that it has."""
    write(
        database,
        runs.finish,
        held,
        model=model or f"{held.run_id}/model-{held.fence}.safetensors",
        provenance=provenance,
        diverged_round=diverged_round,
    )


def end_runs(
    database: Database, history: Callable[[Claim], Sequence[RoundReport]], count: int
) -> list[Claim]:
    """Take `count` runs in turn and end each with the rows that `history` gives it."""
    return [_end_with(database, history) for _ in range(count)]


def pause_or_finish(database: Database, held: Claim) -> None:
    """Hand back a run that is at its rung or its end, with its model."""
    if held.done < held.until:
        return
    model = f"{held.run_id}/model-{held.fence}.safetensors"
    if held.done == held.rounds:
        write(database, runs.finish, held, model=model, provenance={})
    else:
        write(database, runs.pause_at_rung, held, model=model, provenance={})


def fail(database: Database, held: Claim, error: str = "ValueError: no") -> Status:
    """End a run for good by an error: no attempt is left."""
    return write(database, runs.fail, held, error, 0)


def lose(database: Database) -> list[str]:
    """Take the runs whose leases have expired."""
    return list(write(database, recovery.requeue_expired, recovery.LeaseWatch(LEASE_S), ATTEMPTS))


def change_rounds(
    database: Database, run_id: str, change: Callable[[list[Document]], Sequence[Document]]
) -> None:
    """Store the rounds of a run as `change` makes them of those that there are."""
    with database.transaction() as session:
        rows = [row._asdict() for row in curves.after(session, run_id, limit=10_000)]
        session.execute(delete(BlockRecord).where(BlockRecord.run_id == run_id))
        if changed := change(rows):
            append_rows(session, run_id, changed)


def _end_with(database: Database, history: Callable[[Claim], Sequence[RoundReport]]) -> Claim:
    held = claim(database)
    reports = history(held)
    held = commit(database, held, reports)
    end_run(database, held, diverged_round=next((one.round for one in reports if one.diverged), None))
    return held
