"""`/runs/{id}`: one run with its history, as a page or as part of the page of its experiment."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import DatabaseDep, RunId, SettingsDep
from api.runs.service import run_answer
from api.web.rendering import is_fragment, render_page
from fedcore.measures import measure_named
from fedcore.platform.access import Principal
from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import Session, audit, curves, experiments, runs, search, sharing, wait_reasons
from fedcore.platform.store.sharing import Access
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedq.results import presentation

AUDIT_ENTRIES = 50
"""Maximum number of audit entries, the newest."""
DONE = {"POST": "", "PATCH": "edit", "DELETE": "delete"}
PAST = {
    "access": "shared",
    "pause": "paused",
    "resume": "resumed",
    "cancel": "cancelled",
    "retry": "retried",
    "edit": "edited",
}


class RunEvent(NamedTuple):
    """Event in the history of a run."""

    at: datetime
    what: str
    kind: str = "neutral"
    """`ok`, `error` or `neutral`."""


def of_run(session: Session, run: RunRecord, experiment: ExperimentRecord) -> list[RunEvent]:
    """Return the history of a run in chronological order."""
    return sorted([*_own(run), *_decided(session, run), *_done(session, experiment)], key=lambda one: one.at)


class RunLists(NamedTuple):
    """Lists and matrices that a run measured in one round."""

    round: int
    entries: list[dict[str, Any]]
    """Of each its name, title, values, and what its axes stand for."""


def lists_of(session: Session, run_id: str) -> RunLists | None:
    """Return the latest lists of a run, but for its model; None if there are none."""
    found = curves.last_lists(session, run_id)
    named = {} if found is None else {name: value for name, value in found[1].items() if name != "x"}
    if found is None or not named:
        return None
    entries = []
    for name, values in named.items():
        info = measure_named(name)
        title, axes = name.replace("_", " "), [] if info is None else list(info.axes)
        entries.append({"name": name, "title": title, "axes": axes, "values": values})
    return RunLists(found[0], entries)


def _own(run: RunRecord) -> Iterator[RunEvent]:
    yield RunEvent(run.created_at, "queued")
    if run.started_at is not None:
        yield RunEvent(run.started_at, "first started by a worker")
    if run.status in ENDED and run.finished_at is not None:
        yield RunEvent(run.finished_at, _ending(run), "ok" if run.status is Status.SUCCEEDED else "error")


def _ending(run: RunRecord) -> str:
    if run.diverged_round is not None:
        place = f"; first {run.divergence}" if run.divergence else ""
        return f"diverged in round {run.diverged_round}: the model or its loss is not finite{place}"
    if run.stop_reason is not None:
        return f"stopped early in round {run.done:,}: {presentation.STOPPED[run.stop_reason]}"
    return f"{run.status} after {run.done:,} of {presentation.counted(run.rounds, 'round')}"


def _decided(session: Session, run: RunRecord) -> Iterator[RunEvent]:
    if run.until is None:
        return
    found = search.find(session, run.experiment_id)
    rungs = found.rungs
    for arrival in (one for one in search.arrivals(session, run.experiment_id) if one.arm == run.arm):
        value = (
            f"no {found.metric}"
            if arrival.value is None
            else presentation.measurement(found.metric, arrival.value)
        )
        # The last rung of a study is its last round.
        place = "its end" if rungs[arrival.rung] == found.rounds else "the rung"
        yield RunEvent(arrival.arrived_at, f"arm reached {place} at round {rungs[arrival.rung]} with {value}")
        if arrival.verdict is not None and arrival.decided_at is not None:
            yield RunEvent(
                arrival.decided_at, f"arm {arrival.verdict}: rank {arrival.rank} of {arrival.field}"
            )


def _done(session: Session, experiment: ExperimentRecord) -> Iterator[RunEvent]:
    """Yield the actions of users on the experiment, without their addresses."""
    for entry in audit.page(session, target=experiment.id, limit=AUDIT_ENTRIES).items:
        method, _, path = entry.action.partition(" ")
        action = re.sub(r"^.*\{experiment_id\}/?", "", path) or DONE.get(method, "")
        if entry.status < 400 and action in PAST:
            yield RunEvent(entry.at, f"experiment {PAST[action]} by {entry.owner}")
        elif action in PAST:
            yield RunEvent(
                entry.at, f"request by {entry.owner} to {action} the experiment refused ({entry.status})"
            )


router = APIRouter(prefix="/runs", include_in_schema=False)


@router.get("/{run_id}")
def read_run(
    request: Request, principal: Reader, run_id: RunId, database: DatabaseDep, settings: SettingsDep
) -> Response:
    """Return status, history, provenance and files of a run."""
    with database.reading() as session:
        record = runs.find(session, run_id, principal.sees)
        experiment = experiments.find(session, record.experiment_id, principal.sees)
        held = wait_reasons.reasons(session, [record], settings.seen_seconds).get(run_id)
        happened = of_run(session, record, experiment)
        may_change = _may_change(session, experiment, principal)
        lists = lists_of(session, run_id)
    template = "_run.html" if is_fragment(request) else "run.html"
    return render_page(
        request,
        template,
        run=run_answer(record, held),
        experiment=experiment.name,
        claims=record.fence,
        may_change=may_change,
        happened=happened,
        lists=lists,
    )


@router.get("/{run_id}/notes")
def read_notes(request: Request, principal: Reader, run_id: RunId, database: DatabaseDep) -> Response:
    """Return the notes, rendered."""
    with database.reading() as session:
        run = runs.find(session, run_id, principal.sees)
        experiment = experiments.find(session, run.experiment_id, principal.sees)
        may_change = _may_change(session, experiment, principal)
    return render_page(
        request,
        "_notes.html",
        notes=run.notes,
        may_change=may_change,
        resource=f"runs/{run_id}",
        heading="Notes of the run",
    )


def _may_change(session: Session, experiment: ExperimentRecord, principal: Principal) -> bool:
    access = sharing.access_of(session, experiment.id, experiment.owner, principal.sees)
    return access is not Access.READ
