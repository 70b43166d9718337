"""Experiments: created, found, listed, edited and deleted.

`create` is the only way to make one: for a submission, a reproduction and an import alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Select, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.orm import Session, defer

from fedcore.errors import ForbiddenError, ResourceNotFoundError
from fedcore.packages import encode_packages
from fedcore.platform.access import LOCAL
from fedcore.platform.status import ENDED, RunRequest, Status
from fedcore.platform.store import (
    bundles,
    curves,
    datasets,
    lifecycle,
    quotas,
    removals,
    search,
    sharing,
    study,
    webhook_outbox,
    weights,
)
from fedcore.platform.store.blocks import append_rows
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.idempotency import claim_key, find_made
from fedcore.platform.store.lifecycle import IMPORTED, derive_status, lock_runs
from fedcore.platform.store.records import (
    RecordPage,
    arm_rows,
    get_by_id,
    insert_into,
    make_ids,
    make_least_id,
    read_newest,
)
from fedcore.platform.store.sharing import Access
from fedcore.platform.store.tables import (
    ArmRecord,
    Document,
    ExperimentRecord,
    RunRecord,
    TagRecord,
)
from fedcore.simulation.report import StopReason
from fedcore.spec import Arm, ExperimentSpec
from fedcore.spec.components import packages_of
from fedcore.spec.parameters import parameters_of


class RunOutcome(NamedTuple):
    """How a run ended elsewhere, with all its rows."""

    arm: int
    seed: int
    status: Status
    diverged_round: int | None
    stop_reason: StopReason | None
    error: str | None
    started_at: datetime | None
    finished_at: datetime | None
    provenance: Document
    packages: str | None
    """Value of `RunRecord.packages`."""
    rows: Sequence[Document]
    """Rows of rounds from round 1 on, without the run's id."""


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """An experiment to create."""

    spec: ExperimentSpec
    owner: str = LOCAL
    key_id: str = ""
    """The API key of the request, whose quotas apply to the runs; empty: none apply."""
    may_use_all: bool = False
    """True if an administrator asks, who may use the data sets and bundles of all owners."""
    idempotency_key: str | None = None
    """If `owner` has used it before, the experiment created then is the result."""
    request_hash: str = ""
    """Tells the request from others with the same key."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    traceparent: str | None = None
    """Trace that the spans of its runs join."""
    memory_bytes: Sequence[int] = ()
    """Estimated memory of a run, by arm; empty: any worker may take them."""
    work: Sequence[tuple[str, float]] = ()
    """Kind and counted work of a round, by arm (`RunRecord.work`); empty: unknown."""
    run_provenance: Mapping[tuple[int, int], Document] = field(default_factory=dict)
    """Initial provenance of runs, by arm and seed."""
    run_packages: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    """Values of `RunRecord.packages`, by arm and seed (default: the versions installed here)."""
    outcomes: Sequence[RunOutcome] | None = None
    """How its runs, one for each arm and seed, ended elsewhere; they never run here. None: they
    are queued.
    """

    @property
    def runs(self) -> int:
        """Number of runs: all arms, each with all seeds."""
        return self.spec.arm_count * len(self.spec.seeds)


class CreatedExperiment(NamedTuple):
    """Result of `create`."""

    record: ExperimentRecord
    is_new: bool
    """False if the same request created it before."""


def create(session: Session, new: NewExperiment) -> CreatedExperiment:
    """Store an experiment and queue its runs, or store how they ended.

    Raises IdempotencyError for another request under a used key, QuotaError, and SpecificationError
    for uploads that do not exist or that the owner may not read. Roll back then: the idempotency key
    is free again.
    """
    at = database_time(session)
    (id,) = make_ids("exp", at, 1)
    if new.idempotency_key is not None:
        first = claim_key(session, new.owner, new.idempotency_key, new.request_hash, id)
        if first != id:
            _keep_imported_code(session, first, new)
            return CreatedExperiment(find(session, first), is_new=False)
    quotas.check_runs(session, new.key_id, new.runs)
    if new.outcomes is None and new.spec.search is not None:
        new = replace(new, spec=study.with_first_trials(new.spec))
    arms = new.spec.arms()
    work = new.work or [("", 0.0)] * len(arms)
    runs = [
        run
        | {
            "work_kind": work[run["arm"]][0],
            "work": work[run["arm"]][1],
            "owner": new.owner,
            "key_id": new.key_id,
            "provenance": new.run_provenance.get((run["arm"], run["seed"]), {}),
            "packages": new.run_packages.get((run["arm"], run["seed"]), run["packages"]),
        }
        for run in runs_of(new.spec, arms, id, at, new.memory_bytes or [0] * len(arms))
    ]
    runs = runs if new.outcomes is None else _ended(runs, new.outcomes, at)
    parameters = parameters_of(new.spec, arms)
    row = _row_of(new, id, at) | {"parameters": parameters.common}
    session.execute(insert_into(ExperimentRecord), row)
    session.execute(insert_into(ArmRecord), arm_rows(id, parameters.arms))
    _add_tags(session, id, new.spec.tags)
    session.execute(insert_into(RunRecord), runs)
    if new.outcomes is None:
        if new.spec.search is not None:
            search.begin(session, id, new.spec.search, new.spec)
            # Trials whose settings are not valid together have failed already.
            lifecycle.refresh_status(session, [id])
        use_uploads(session, id, new.spec, arms, new.owner, may_use_all=new.may_use_all)
        webhook_outbox.of_runs(session, [run["id"] for run in runs])
        webhook_outbox.of_experiments(session, [id])
    else:
        for run, outcome in zip(runs, new.outcomes, strict=True):
            if outcome.rows:
                append_rows(session, run["id"], outcome.rows)
        _keep_imported_code(session, id, new)
    record = get_by_id(session, ExperimentRecord, id)
    assert record is not None
    return CreatedExperiment(record, is_new=True)


def _keep_imported_code(session: Session, experiment_id: str, new: NewExperiment) -> None:
    """Record that an experiment, if it was imported, uses its bundle, if that is there: it is kept then."""
    code = new.spec.code
    if new.outcomes is not None and code is not None and code.id is not None:
        bundles.use(session, experiment_id, code, None if new.may_use_all else new.owner)


def find_repeated(
    session: Session, owner: str, idempotency_key: str, request_hash: str
) -> ExperimentRecord | None:
    """The experiment that `create` made for the same request before; None for a new request.

    Raises IdempotencyError for another request under a used key.
    """
    first = find_made(session, owner, idempotency_key, request_hash)
    return None if first is None else find(session, first)


def check_uploads(session: Session, spec: ExperimentSpec, owner: str | None) -> None:
    """Raise SpecificationError unless `owner`, None: an administrator, may use the data sets and the
    code bundle of a specification.
    """
    datasets.check_use(session, spec.model_dump(mode="json"), spec.arms(), owner)
    if spec.code is not None:
        bundles.check_use(session, spec.code, owner)


def use_uploads(
    session: Session,
    experiment_id: str,
    spec: ExperimentSpec,
    arms: Sequence[Arm],
    owner: str,
    *,
    may_use_all: bool,
) -> None:
    """Record what an experiment of `owner` uses: data sets, code bundle, files of pretrained networks.

    Raises SpecificationError for what does not exist, or what `owner` may not read; see
    `NewExperiment.may_use_all`.
    """
    reader = None if may_use_all else owner
    datasets.use(session, experiment_id, spec.model_dump(mode="json"), arms, reader)
    if spec.code is not None:
        bundles.use(session, experiment_id, spec.code, reader)
    if named := set().union(*(arm.spec.weights_files for arm in arms)):
        weights.use(session, experiment_id, named, owner)


def runs_of(
    spec: ExperimentSpec,
    arms: Sequence[Arm],
    experiment_id: str,
    moment: datetime,
    memory_bytes: Sequence[int],
) -> list[Document]:
    """Return the rows of new runs: all `arms`, each with all seeds of `spec`."""
    points = [(arm, seed) for arm in arms for seed in spec.seeds]
    packages = {arm.index: encode_packages(packages_of(arm.spec)) for arm in arms}
    return [
        {
            "id": run_id,
            "experiment_id": experiment_id,
            "arm": arm.index,
            "arm_name": arm.name,
            "settings": arm.settings,
            "seed": seed,
            "status": Status.QUEUED,
            "request": RunRequest.NONE,
            "rounds": arm.spec.rounds,
            "queue": spec.execution.queue,
            "priority": spec.execution.priority,
            "memory_bytes": memory_bytes[arm.index],
            "packages": packages[arm.index],
            "queued_at": moment,
            "created_at": moment,
            "provenance": {},
            "figures": {},
        }
        for run_id, (arm, seed) in zip(make_ids("run", moment, len(points)), points, strict=True)
    ]


def origin(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provenance of an experiment where it ran: its own, or the imported one, which may
    contain anything.
    """
    while isinstance(imported := provenance.get(IMPORTED), dict):
        provenance = imported["provenance"] if isinstance(imported.get("provenance"), dict) else {}
    return provenance


@dataclass(frozen=True, slots=True)
class Filter:
    """Which experiments are wanted: experiments with this owner, status, tag, name and star,
    created in [after, before); None: any.
    """

    owner: str | None = None
    status: Status | None = None
    tag: str | None = None
    name: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    seen_by: str | None = None
    """An owner who sees them: their own experiments, and experiments that others share with them."""
    search: str | None = None
    """Part of the name, in upper or lower case (of ASCII, on SQLite)."""
    starred: bool | None = None
    archived: bool = False
    """True: archived experiments; False: all others."""


def find(session: Session, experiment_id: str, owner: str | None = None) -> ExperimentRecord:
    """The experiment with this id, if `owner` may read it where one is given; raises
    ResourceNotFoundError.
    """
    record = get_by_id(session, ExperimentRecord, experiment_id)
    if record is None or not sharing.may_read(session, experiment_id, record.owner, owner):
        raise ResourceNotFoundError(f"there is no experiment {experiment_id!r}")
    return record


def find_to_change(session: Session, experiment_id: str, owner: str | None) -> ExperimentRecord:
    """Find an experiment; raises what `find` raises, and ForbiddenError if `owner` may only read
    it.
    """
    record = find(session, experiment_id, owner)
    if sharing.access_of(session, experiment_id, record.owner, owner) is Access.READ:
        raise ForbiddenError(f"you may read {experiment_id}, not change it: ask {record.owner} for access")
    return record


def find_own(session: Session, experiment_id: str, owner: str | None) -> ExperimentRecord:
    """Find an experiment; raises what `find` raises, and ForbiddenError unless it is `owner`'s."""
    record = find(session, experiment_id, owner)
    sharing.require_owner(record, owner, experiment_id)
    return record


def page(
    session: Session,
    wanted: Filter = Filter(),
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> RecordPage[ExperimentRecord]:
    """Experiments that are wanted, newest first.

    They come without `spec` and `notes`, which can be large: use `find`.
    """
    large = ExperimentRecord.spec, ExperimentRecord.notes
    query = select(ExperimentRecord).options(*(defer(column, raiseload=True) for column in large))
    for column in ("owner", "status", "name", "starred", "archived"):
        value = getattr(wanted, column)
        query = query if value is None else query.where(getattr(ExperimentRecord, column) == value)
    if wanted.tag is not None:
        query = query.where(
            ExperimentRecord.id.in_(select(TagRecord.experiment_id).where(TagRecord.tag == wanted.tag))
        )
    if wanted.search is not None:
        query = query.where(ExperimentRecord.name.icontains(wanted.search, autoescape=True))
    query = _within(query, wanted.created_after, wanted.created_before)
    if wanted.seen_by is not None:
        query = sharing.newest_visible(query, wanted.seen_by, limit + 1, cursor)
    return read_newest(session, query, ExperimentRecord.id, limit, cursor)


def edit(session: Session, /, experiment_id: str, **given: Any) -> ExperimentRecord:
    """Change the columns that are given and not None; a new priority holds for its runs, too. Raises
    ResourceNotFoundError.
    """
    changes = {column: value for column, value in given.items() if value is not None}
    if "priority" in changes:
        lock_runs(session, experiment_id)
        runs = RunRecord.experiment_id == experiment_id
        session.execute(update(RunRecord).where(runs).values(priority=changes["priority"]))
    session.execute(
        update(ExperimentRecord)
        .where(ExperimentRecord.id == experiment_id)
        .values(updated_at=sql_now(), **changes)
    )
    record = find(session, experiment_id)
    if "tags" in changes:
        session.execute(delete_from(TagRecord).where(TagRecord.experiment_id == experiment_id))
        _add_tags(session, experiment_id, changes["tags"])
    return record


def expired(session: Session, older_than_s: float, after: str = "") -> ExperimentRecord | None:
    """The first experiment, in the order of ids, that follows the id `after`, ended more than
    `older_than_s` seconds ago and is not starred, with its specification.
    """
    before = database_time(session) - timedelta(seconds=older_than_s)
    # An id begins with the time of its creation, so no younger ones are read.
    query = select(ExperimentRecord).where(
        ExperimentRecord.id > after,
        ExperimentRecord.id < make_least_id("exp", before),
        ExperimentRecord.status.in_(ENDED),
        ExperimentRecord.finished_at < before,
        ExperimentRecord.starred.is_(False),
    )
    return session.scalar(query.order_by(ExperimentRecord.id).limit(1))


def delete_expired(session: Session, experiment: ExperimentRecord) -> bool:
    """Delete an experiment that had `expired`; False if it was deleted, starred or continued since."""
    as_it_was = select(ExperimentRecord.id).where(
        ExperimentRecord.id == experiment.id,
        ExperimentRecord.updated_at == experiment.updated_at,
        ExperimentRecord.starred.is_(False),
    )
    if session.scalar(as_it_was.with_for_update()) is None:
        return False
    delete(session, experiment.id)
    return True


def delete(session: Session, experiment_id: str) -> None:
    """Remove an experiment with its runs and their rows, whatever its status.

    A worker on one of them stops at its next commit.

    Their files are removed later. Raises ResourceNotFoundError.
    """
    lock_runs(session, experiment_id)
    quotas.archive_usage(session, experiment_id)
    removals.note_runs(session, experiment_id)
    bundles.BUNDLES.release(session, experiment_id)
    weights.WEIGHTS.release(session, experiment_id)
    sharing.end(session, experiment_id)
    gone = session.execute(
        delete_from(ExperimentRecord)
        .where(ExperimentRecord.id == experiment_id)
        .returning(ExperimentRecord.id)
    )
    if gone.first() is None:
        raise ResourceNotFoundError(f"there is no experiment {experiment_id!r}")


def _within(
    query: Select[ExperimentRecord], after: datetime | None, before: datetime | None
) -> Select[ExperimentRecord]:
    # An id begins with the time of its creation, so one index serves both the order and the bounds.
    if before:
        query = query.where(ExperimentRecord.id < make_least_id("exp", before))
    return query.where(ExperimentRecord.id >= make_least_id("exp", after)) if after else query


def _row_of(new: NewExperiment, id: str, at: datetime) -> Document:
    spec = new.spec
    return {
        "id": id,
        "name": spec.name,
        "description": spec.description,
        "tags": list(spec.tags),
        "status": Status.QUEUED,
        "priority": spec.execution.priority,
        "owner": new.owner,
        "created_at": at,
        "updated_at": at,
        "spec": spec.model_dump(mode="json"),
        "provenance": dict(new.provenance),
        "traceparent": new.traceparent,
        **({} if new.outcomes is None else _end_of(new.outcomes, at)),
    }


def _end_of(outcomes: Sequence[RunOutcome], at: datetime) -> Document:
    failures = [outcome.error for outcome in outcomes if outcome.error and outcome.status is Status.FAILED]
    return {
        "status": derive_status(Counter(outcome.status for outcome in outcomes), started=True),
        "started_at": min((outcome.started_at for outcome in outcomes if outcome.started_at), default=None),
        "finished_at": max((outcome.finished_at for outcome in outcomes if outcome.finished_at), default=at),
        "error": max(failures, default=None),
    }


def _ended(runs: Sequence[Document], outcomes: Sequence[RunOutcome], at: datetime) -> list[Document]:
    """Return the rows of ended runs, in the order of the outcomes: their ids then sort as the ids
    of the runs they were exported from.
    """
    planned = {(run["arm"], run["seed"]): run for run in runs}
    figures = [
        curves.updated_figures({}, [(row["round"], curves.measures_of(row)) for row in outcome.rows])
        for outcome in outcomes
    ]
    return [
        planned[outcome.arm, outcome.seed]
        | {
            "id": id,
            "status": outcome.status,
            "done": len(outcome.rows),
            "seconds": sum(row["seconds"] for row in outcome.rows),
            "diverged_round": outcome.diverged_round,
            "stop_reason": outcome.stop_reason,
            "error": outcome.error,
            "started_at": outcome.started_at,
            "finished_at": outcome.finished_at or at,
            **curves.judge(found, outcome.provenance, outcome.diverged_round),
            "packages": outcome.packages,
            "figures": found,
        }
        for id, outcome, found in zip(sorted(run["id"] for run in runs), outcomes, figures, strict=True)
    ]


def _add_tags(session: Session, experiment_id: str, tags: Sequence[str]) -> None:
    rows = [{"tag": tag, "experiment_id": experiment_id} for tag in sorted(set(tags))]
    if rows:
        session.execute(insert_into(TagRecord), rows)
