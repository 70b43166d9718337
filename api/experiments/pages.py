"""`/experiments/{id}`: one experiment, and the parts of its page that refresh themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

from api.experiments.service import summary_answer
from api.http.authentication import Reader
from api.http.dependencies import AppStateDep, Cursor, DatabaseDep, ExperimentId, SettingsDep
from api.results.queries import curve_context, read_claims
from api.runs.service import run_answer
from api.search.service import search_answer
from api.web.rendering import render_page
from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import (
    Session,
    bundles,
    experiments,
    lifecycle,
    progress,
    reproductions,
    runs,
    search,
    sharing,
    wait_reasons,
)
from fedcore.platform.store.sharing import Access
from fedcore.spec import sweep, yaml_documents
from fedq.schemas import ExperimentSummary

UNDER_WAY = (Status.RUNNING, Status.QUEUED, Status.AT_RUNG)


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """An experiment at one moment."""

    experiment: ExperimentSummary
    imported: bool
    """True if it ran elsewhere and never continues here."""
    searched: bool
    """True if a search decides how far its arms get."""
    access: Access
    """Rights of the user."""

    @property
    def live(self) -> bool:
        """True while it can still change by itself."""
        return self.experiment.status not in ENDED and self.experiment.status is not Status.PAUSED

    @property
    def actions(self) -> list[str]:
        """Actions below `/v1/experiments/{id}` that are possible now."""
        return [] if self.imported else actions(self.experiment.progress.runs, searched=self.searched)

    @property
    def digest(self) -> str:
        """Digest of everything shown; equal as long as nothing changes."""
        return sha256(self.experiment.model_dump_json().encode()).hexdigest()[:16]


def read(session: Session, experiment_id: str, owner: str | None) -> ExperimentState:
    """Read the state of an experiment of `owner`, None: of anyone; raises ResourceNotFoundError."""
    record = experiments.find(session, experiment_id, owner)
    summary = summary_answer(record, progress.progress(session, experiment_id))
    access = sharing.access_of(session, experiment_id, record.owner, owner)
    assert access is not None  # `find` would have raised
    return ExperimentState(
        summary, lifecycle.IMPORTED in record.provenance, record.spec.get("search") is not None, access
    )


def actions(runs: Mapping[Status, int], *, searched: bool = False) -> list[str]:
    """Return the actions possible for an experiment with these counts of runs by status."""
    offered = {
        "pause": any(runs.get(status) for status in UNDER_WAY),
        "resume": bool(runs.get(Status.PAUSED)),
        "cancel": any(runs.get(status) for status in (*UNDER_WAY, Status.PAUSED)),
        "retry": any(runs.get(status) for status in (Status.FAILED, Status.CANCELLED)),
        "extend": not searched
        and any(runs.get(status) for status in (*UNDER_WAY, Status.PAUSED, Status.SUCCEEDED)),
    }
    return [name for name, makes_sense in offered.items() if makes_sense]


def highlight(text: str) -> Markup:
    """Return YAML as HTML with classes that `fedq.css` colours."""
    # Loaded with the first page that shows some.
    from pygments import highlight as marked
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.data import YamlLexer

    return Markup(marked(text, YamlLexer(), HtmlFormatter(nowrap=True)))  # noqa: S704 - Pygments escapes what it marks


RUNS = 100
"""Rows per page."""

router = APIRouter(prefix="/experiments/{experiment_id}", include_in_schema=False)

Seen = Annotated[str, Query(max_length=16, description="The digest of what the page shows.")]


@router.get("")
def read_page(
    request: Request, principal: Reader, experiment_id: ExperimentId, database: DatabaseDep
) -> Response:
    """Return the whole page."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        now = read(session, experiment_id, principal.sees)
        shares = sharing.shares(session, experiment_id)
        missing = reproductions.missing(session, record)
        used = record.spec.get("code")
        code = used and bundles.find_if_any(session, used["digest"], principal.sees, principal.owner)
    specification = yaml_documents.dump(record.spec)
    return render_page(
        request,
        "experiment.html",
        now=now,
        **curve_context([record.spec], sweep.size(record.spec["sweep"])),
        notes=record.notes,
        may_change=now.access is not Access.READ,
        readers=[owner for owner, access in shares.items() if access is Access.READ],
        writers=[owner for owner, access in shares.items() if access is Access.WRITE],
        specification=specification,
        highlighted=highlight(specification),
        provenance=record.provenance,
        missing=missing,
        code=code,
        has_search=now.searched,
        has_claims="preset" in experiments.origin(record.provenance),
    )


@router.get("/standing")
def read_standing(
    request: Request, principal: Reader, experiment_id: ExperimentId, database: DatabaseDep, seen: Seen = ""
) -> Response:
    """Return name, status, progress and actions; 204 if the page already shows them."""
    with database.reading() as session:
        now = read(session, experiment_id, principal.sees)
    return (
        Response(status_code=204) if now.digest == seen else render_page(request, "_standing.html", now=now)
    )


@router.get("/notes")
def read_notes(
    request: Request, principal: Reader, experiment_id: ExperimentId, database: DatabaseDep
) -> Response:
    """Return the notes, rendered."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        access = sharing.access_of(session, experiment_id, record.owner, principal.sees)
    return render_page(
        request,
        "_notes.html",
        notes=record.notes,
        may_change=access is not Access.READ,
        resource=f"experiments/{experiment_id}",
        heading="Notes of the experiment",
    )


@router.get("/runs")
def read_runs(
    request: Request,
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    settings: SettingsDep,
    cursor: Cursor = None,
) -> Response:
    """Return a page of the runs, by arm and seed."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        records = runs.of_experiment(session, experiment_id, after=cursor or None, limit=RUNS + 1)
        held = wait_reasons.reasons(session, records[:RUNS], settings.seen_seconds)
        errors = {one.error for one in records[:RUNS] if one.error}
        shared = runs.shared_errors(session, experiment_id, errors)
    items = [run_answer(record, held.get(record.id)) for record in records[:RUNS]]
    following = items[-1].id if len(records) > RUNS else None
    return render_page(
        request,
        "_runs.html",
        experiment_id=experiment_id,
        items=items,
        shared=shared,
        above=record.error,
        cursor=cursor,
        next=following,
    )


@router.get("/search")
def read_rungs(
    request: Request, principal: Reader, experiment_id: ExperimentId, database: DatabaseDep
) -> Response:
    """Return the decisions of its search, rung by rung."""
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        found = search_answer(session, search.find(session, experiment_id))
    by_rung = [[item for item in found.items if item.rung == rung] for rung in range(len(found.rungs))]
    return render_page(request, "_search.html", search=found, by_rung=by_rung)


@router.get("/claims")
async def read_verdicts(
    request: Request, principal: Reader, experiment_id: ExperimentId, state: AppStateDep
) -> Response:
    """Return the claims of its publication with their verdicts."""
    work = partial(read_claims, state.database, principal, experiment_id)
    return render_page(request, "_claims.html", found=await state.reading_gate.run(principal.owner, work))
