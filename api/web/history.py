"""What has happened to a run, as far as the database remembers: what it was through itself, what its search decided, what people did."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import Session, audit, search
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.simulation.report import StopReason

DEEDS = 50
"""The newest, at most."""
DONE = {"POST": "", "PATCH": "edit", "DELETE": "delete"}
PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled", "retry": "retried", "edit": "edited"}
STOPPED = {
    StopReason.RUNG: "stopped at a rung: its search did not promote its arm",
    StopReason.PATIENCE: "stopped early: no improvement for as long as its patience lasted",
    StopReason.TARGET: "stopped early: the target was reached",
}


class Happening(NamedTuple):
    """One thing that happened."""

    at: datetime
    what: str
    kind: str = "neutral"
    """`ok` or `error`, where it is one of them."""


def of_run(session: Session, run: RunRecord, experiment: ExperimentRecord) -> list[Happening]:
    """In the order in which it happened."""
    return sorted([*_own(run), *_decided(session, run), *_done(session, experiment)], key=lambda one: one.at)


def _own(run: RunRecord) -> Iterator[Happening]:
    yield Happening(run.created_at, "queued")
    if run.started_at is not None:
        yield Happening(run.started_at, "taken up by a worker for the first time")
    if run.status in ENDED and run.finished_at is not None:
        yield Happening(run.finished_at, _ending(run), "ok" if run.status is Status.SUCCEEDED else "error")


def _ending(run: RunRecord) -> str:
    if run.diverged_round is not None:
        return f"diverged in round {run.diverged_round}: the model or its loss was no longer finite"
    if run.stop_reason is not None:
        return f"{STOPPED[run.stop_reason]} (round {run.done})"
    return f"{run.status} after {run.done:,} of {run.rounds:,} rounds"


def _decided(session: Session, run: RunRecord) -> Iterator[Happening]:
    if run.until is None:
        return
    rungs = search.find(session, run.experiment_id).rungs
    for arrival in (one for one in search.arrivals(session, run.experiment_id) if one.arm == run.arm):
        value = "no value" if arrival.value is None else f"{arrival.value:.6g}"
        yield Happening(arrival.arrived_at, f"its arm came to the rung at round {rungs[arrival.rung]} with {value}")
        if arrival.verdict is not None and arrival.decided_at is not None:
            yield Happening(arrival.decided_at, f"its arm was {arrival.verdict}: place {arrival.rank} of {arrival.field}")


def _done(session: Session, experiment: ExperimentRecord) -> Iterator[Happening]:
    """What people did to the experiment: by whom, but not from where."""
    for entry in audit.page(session, target=experiment.id, limit=DEEDS).items:
        method, _, path = entry.action.partition(" ")
        deed = re.sub(r"^.*\{experiment_id\}/?", "", path) or DONE.get(method, "")
        if entry.status < 400 and deed in PAST:
            yield Happening(entry.at, f"the experiment was {PAST[deed]} by {entry.owner}")
        elif deed in PAST:
            yield Happening(entry.at, f"{entry.owner} wanted to {deed} the experiment, which was refused ({entry.status})")
