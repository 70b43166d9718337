"""Searches: arms that come to a rung, what is decided there, and what that makes of their runs.

An arm arrives when each of its runs is held at the rung or has ended. Arrivals of an experiment
have an order, and each brings what `fedcore.simulation.halving` finds to follow from it; all in the
transaction that changed the last of the runs, under the lock of the search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.orm import Session

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.status import Status
from fedcore.platform.store import curves, study, webhook_outbox
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import ArrivalRecord, RunRecord, SearchRecord
from fedcore.simulation.halving import Decision, HalvingSchedule, RungResult, RungTable, Verdict
from fedcore.simulation.report import StopReason
from fedcore.spec.search import Study

if TYPE_CHECKING:
    from fedcore.spec import ExperimentSpec
    from fedcore.spec.search import AnySearch

SETTLED = frozenset({Status.SUCCEEDED, Status.FAILED})
"""Runs that come to no further rung, unless a failed one is retried in time."""


def begin(session: Session, experiment_id: str, search: AnySearch, spec: ExperimentSpec) -> None:
    """Begin the search of a new experiment: its runs, or in a study the runs of the first trials,
    may play up to the first rung.
    """
    if isinstance(search, Study):
        for arm in study.begin(session, experiment_id, spec):
            advance(session, experiment_id, arm)
        return
    ladder = HalvingSchedule.of(search, spec.arm_count, spec.rounds)
    values = {"kind": search.kind, "metric": search.metric, "rounds": spec.rounds, "arrivals": 0}
    kept = {"maximise": ladder.maximise, "eta": ladder.eta, "arms": ladder.arms, "rungs": list(ladder.rungs)}
    session.execute(insert(SearchRecord).values(experiment_id=experiment_id, **values, **kept))
    session.execute(
        update(RunRecord).where(RunRecord.experiment_id == experiment_id).values(until=ladder.rungs[0])
    )


def lock(session: Session, experiment_id: str) -> None:
    """To be called before any of its runs is locked by what may decide on them, or changes many:
    one at a time does.
    """
    lock_all(session, [experiment_id])


def lock_all(session: Session, experiment_ids: Sequence[str]) -> Sequence[str]:
    """Call `lock` for several; returns the ids of the experiments that have a search."""
    wanted = select(SearchRecord.experiment_id).where(SearchRecord.experiment_id.in_(experiment_ids))
    return session.scalars(wanted.order_by(SearchRecord.experiment_id).with_for_update()).all()


def find(session: Session, experiment_id: str) -> SearchRecord:
    """The search of an experiment; raises ResourceNotFoundError where it has none."""
    record = session.get(SearchRecord, experiment_id)
    if record is None:
        raise ResourceNotFoundError(f"experiment {experiment_id!r} has no search: all arms run all rounds")
    return record


def arrivals(
    session: Session, experiment_id: str, after: int = 0, limit: int | None = None
) -> Sequence[ArrivalRecord]:
    """The arrivals of an experiment after that of this sequence, in order."""
    query = select(ArrivalRecord).where(
        ArrivalRecord.experiment_id == experiment_id, ArrivalRecord.sequence > after
    )
    return session.scalars(query.order_by(ArrivalRecord.sequence).limit(limit)).all()


def decided(session: Session, experiment_ids: Sequence[str]) -> dict[str, int]:
    """How many decisions each of these experiments has, by id; experiments without decisions are
    left out.
    """
    made = ArrivalRecord.experiment_id.in_(experiment_ids), ArrivalRecord.verdict.is_not(None)
    query = (
        select(ArrivalRecord.experiment_id, func.count()).where(*made).group_by(ArrivalRecord.experiment_id)
    )
    return dict(session.execute(query).all())


def decisions(session: Session, experiment_id: str, after: int, limit: int) -> Sequence[ArrivalRecord]:
    """The decisions after the first `after`, in the order in which they were made.

    What is made later comes after all of them.
    """
    query = select(ArrivalRecord).where(
        ArrivalRecord.experiment_id == experiment_id, ArrivalRecord.verdict.is_not(None)
    )
    ordered = query.order_by(
        ArrivalRecord.decided_by, ArrivalRecord.rung, ArrivalRecord.rank, ArrivalRecord.arm
    )
    return session.scalars(ordered.offset(after).limit(limit)).all()


def names(session: Session, experiment_id: str, arms: Sequence[int]) -> dict[int, str]:
    """The names of these arms, by index."""
    query = select(RunRecord.arm, RunRecord.arm_name).where(
        RunRecord.experiment_id == experiment_id, RunRecord.arm.in_(arms)
    )
    return dict(session.execute(query.distinct()).all())


class ArmStanding(NamedTuple):
    """The last rung that an arm has come to, and what became of it there."""

    round: int
    value: float | None
    verdict: Verdict | None


def last(session: Session, experiment_id: str) -> dict[int, ArmStanding]:
    """Where the arms of an experiment that have come to a rung stand in its search, by index."""
    record = session.get(SearchRecord, experiment_id)
    if record is None:
        return {}
    # An arm comes to a higher rung later.
    return {
        one.arm: ArmStanding(record.rungs[one.rung], one.value, one.verdict)
        for one in arrivals(session, experiment_id)
    }


def ladder_of(record: SearchRecord) -> HalvingSchedule:
    """The search before anything has arrived."""
    return HalvingSchedule(
        record.arms, tuple(record.rungs), record.eta, record.maximise, record.kind == "asha"
    )


def advance(session: Session, experiment_id: str, arm: int) -> None:
    """A run of this arm was parked or has ended; does what follows, for all arms.

    The search must be locked.
    """
    record = session.get(SearchRecord, experiment_id)
    if record is None:
        return
    if record.kind == study.KIND:
        _advance_study(session, record, arm)
        return
    moved, board = deque([arm]), None
    while moved:
        arrival = _arrival(session, record, moved.popleft())
        if arrival is None:
            continue
        board = board or _board(session, record)
        sequence = _append(session, record, arrival)
        decisions = board.submit(arrival)
        _record(session, experiment_id, sequence, decisions)
        moved.extend(_apply(session, record, decisions))


def _advance_study(session: Session, record: SearchRecord, arm: int) -> None:
    """Record the values of a trial that has come to a rung or ended, stop what the pruner stops, and
    propose the next trials once all earlier ones have ended.
    """
    opened = study.OpenStudy(session, record)
    moved = deque([arm])
    while moved:
        current = moved.popleft()
        if opened.is_proposed(current):
            arrival = _arrival(session, record, current, opened)
            if arrival is None:
                continue
            sequence = _append(session, record, arrival)
            while decisions := opened.decide():
                _record(session, record.experiment_id, sequence, decisions)
                moved.extend(_apply(session, record, decisions))
        elif not all(map(_waits, _runs(session, record, current))):
            continue
        proposed = opened.propose()
        if proposed is not None:
            # None of them has ended: only runs that have begun do.
            list(_promote(session, record, proposed.valid, proposed.until))
            moved.extend(proposed.invalid)


def _arrival(
    session: Session, record: SearchRecord, arm: int, opened: study.OpenStudy | None = None
) -> RungResult | None:
    """Arrival of the arm at its next rung, if it is there.

    None too where it was there before: then what was decided holds.
    """
    of_arm = ArrivalRecord.experiment_id == record.experiment_id, ArrivalRecord.arm == arm
    last = session.scalars(
        select(ArrivalRecord).where(*of_arm).order_by(ArrivalRecord.rung.desc()).limit(1)
    ).first()
    if last is not None and last.verdict is not Verdict.PROMOTED:
        if last.verdict is Verdict.STOPPED:
            _stop(session, record, [arm])
        return None
    first = 0 if opened is None else opened.first_rung(arm)
    rung = first if last is None else last.rung + 1
    runs = _runs(session, record, arm)
    if rung == len(record.rungs) or not all(map(_waits, runs)):
        return None
    by_run = [_values(session, run, record, record.rungs[rung], opened) for run in runs]
    value, *further = (fmean(column) for column in zip(*by_run, strict=True))
    return RungResult(arm, rung, value, tuple(further))


def _runs(session: Session, record: SearchRecord, arm: int) -> Sequence[RunRecord]:
    return session.scalars(select(RunRecord).where(*_of(record, [arm])).order_by(RunRecord.id)).all()


def _waits(run: RunRecord) -> bool:
    """True if the run is held at its rung, or comes to no further one."""
    return run.held_at is not None or run.status in SETTLED


def _values(
    session: Session, run: RunRecord, record: SearchRecord, round: int, opened: study.OpenStudy | None
) -> list[float]:
    """The values of a run by metric; NaN where it has none."""
    if opened is not None:
        found = opened.values(run, round)
    else:
        found = [curves.value(session, run, record.metric, round)]
    bad = run.status is Status.FAILED or run.diverged_round is not None
    return [nan if bad or value is None else value for value in found]


def _board(session: Session, record: SearchRecord) -> RungTable:
    board = RungTable(ladder_of(record))
    for known in arrivals(session, record.experiment_id):
        board.record(arrival_of(known), known.verdict)
    return board


def arrival_of(record: ArrivalRecord) -> RungResult:
    """An arrival, as decisions see it."""
    return RungResult(record.arm, record.rung, nan if record.value is None else record.value)


def _append(session: Session, record: SearchRecord, arrival: RungResult) -> int:
    """Record an arrival; its sequence."""
    counted = (
        update(SearchRecord)
        .where(SearchRecord.experiment_id == record.experiment_id)
        .values(arrivals=SearchRecord.arrivals + 1)
    )
    sequence = session.scalars(counted.returning(SearchRecord.arrivals)).one()
    value, *further = (one if isfinite(one) else None for one in (arrival.value, *arrival.further))
    place = {
        "experiment_id": record.experiment_id,
        "sequence": sequence,
        "arm": arrival.arm,
        "rung": arrival.rung,
    }
    values = {"value": value, "further_values": further or None}
    session.execute(insert(ArrivalRecord).values(**place, **values, arrived_at=sql_now()))
    return sequence


def _record(session: Session, experiment_id: str, sequence: int, decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        undecided = (
            ArrivalRecord.experiment_id == experiment_id,
            ArrivalRecord.arm == decision.arm,
            ArrivalRecord.rung == decision.rung,
            ArrivalRecord.verdict.is_(None),
        )
        found = {
            "verdict": decision.verdict,
            "rank": decision.rank,
            "field": decision.field,
            "places": decision.places,
        }
        session.execute(
            update(ArrivalRecord).where(*undecided).values(**found, decided_by=sequence, decided_at=sql_now())
        )


def _apply(session: Session, record: SearchRecord, decisions: Sequence[Decision]) -> Iterator[int]:
    """Let the runs of these arms go on or end.

    Yields the arms that are at the next rung already, since all of their runs have ended.
    """
    _stop(session, record, [decision.arm for decision in decisions if decision.verdict is Verdict.STOPPED])
    for rung in range(len(record.rungs)):
        promoted = [
            decision.arm
            for decision in decisions
            if decision.verdict is Verdict.PROMOTED and decision.rung == rung
        ]
        yield from _promote(session, record, promoted, (*record.rungs, record.rounds)[rung + 1])


def _promote(session: Session, record: SearchRecord, arms: Sequence[int], until: int) -> Iterator[int]:
    if not arms:
        return
    held = (*_of(record, arms), RunRecord.held_at.is_not(None))
    # They keep their place in the queue, before arms that have not begun.
    queued = update(RunRecord).where(*held, RunRecord.status == Status.AT_RUNG).values(status=Status.QUEUED)
    webhook_outbox.of_runs(session, session.scalars(queued.returning(RunRecord.id)).all())
    session.execute(update(RunRecord).where(*held).values(held_at=None, until=until))
    unfinished = func.count().filter(RunRecord.status.not_in(SETTLED)) == 0
    yield from session.scalars(
        select(RunRecord.arm).where(*_of(record, arms)).group_by(RunRecord.arm).having(unfinished)
    )


def _stop(session: Session, record: SearchRecord, arms: Sequence[int]) -> None:
    if not arms:
        return
    ended = {"status": Status.SUCCEEDED, "stop_reason": StopReason.RUNG, "finished_at": sql_now()}
    held = (*_of(record, arms), RunRecord.held_at.is_not(None))
    # One that was cancelled meanwhile stays so, until it is retried and comes here again.
    over = update(RunRecord).where(*held, RunRecord.status.in_((Status.AT_RUNG, Status.PAUSED))).values(ended)
    webhook_outbox.of_runs(session, session.scalars(over.returning(RunRecord.id)).all())
    session.execute(update(RunRecord).where(*held).values(held_at=None))


def _of(record: SearchRecord, arms: Sequence[int]) -> tuple[ColumnElement[bool], ...]:
    return RunRecord.experiment_id == record.experiment_id, RunRecord.arm.in_(arms)
