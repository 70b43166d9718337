"""Progress of experiments: rounds done, runs by status, remaining time."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Executable, Text, bindparam, case, cast, func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import ENDED, Status
from fedcore.platform.store.tables import Document, ExperimentRecord, RunRecord
from fedcore.statistics.poor_runs import WarningKind

_SUMS = (
    func.count(),
    func.sum(RunRecord.done),
    func.sum(RunRecord.rounds),
    func.sum(RunRecord.seconds),
    func.count(RunRecord.diverged_round),
    func.count(case((RunRecord.warning_kind == WarningKind.AT_CHANCE, 1))),
    func.count(case((RunRecord.warning_kind == WarningKind.WORSE, 1))),
)
"""Columns of a `_Group`, after the status."""
# JSON cannot be grouped by, its text can; that of an arm is the same in all its runs.
UNENDED = tuple(status for status in Status if status not in ENDED)
_ARM = (RunRecord.arm, RunRecord.arm_name, cast(RunRecord.settings, Text), RunRecord.status)
_OVERVIEW: Executable = (
    select(*_ARM, *_SUMS).where(RunRecord.experiment_id == bindparam("wanted")).group_by(*_ARM)
)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of the runs of an experiment."""

    done: int
    """Rounds committed, over all runs."""
    rounds: int
    """Rounds asked for, over all runs; a run that diverged counts those it has."""
    runs: dict[Status, int]
    """How many runs have each status."""
    eta_s: float | None
    """Seconds to the end, were as many runs running as now; None when nothing runs or nothing is
    known yet.
    """
    warnings: dict[WarningKind, int]
    """How many runs have succeeded with each warning."""


class RunSnapshot(NamedTuple):
    """Status and progress of one run."""

    status: Status
    done: int
    """Rounds committed."""


class ArmPoint(NamedTuple):
    """One point of a sweep."""

    arm: int
    name: str
    settings: Document
    """The swept paths and their values."""


class Overview(NamedTuple):
    """An experiment as a whole."""

    progress: RunProgress
    arms: Sequence[ArmPoint]
    """Arms, in their order."""


class ExperimentSnapshot(NamedTuple):
    """Status of an experiment and of its runs."""

    status: Status
    runs: dict[str, RunSnapshot]
    """Runs by id, in their order."""


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    """The unfinished runs of one queue and status."""

    queue: str
    status: Status
    runs: int
    rounds_left: int


def experiment_snapshots(session: Session, experiment_ids: Sequence[str]) -> dict[str, ExperimentSnapshot]:
    """Read the status of each of the experiments that exist, by id."""
    columns = (ExperimentRecord.id, ExperimentRecord.status, RunRecord.id, RunRecord.status, RunRecord.done)
    query = (
        select(*columns)
        .join(RunRecord, RunRecord.experiment_id == ExperimentRecord.id)
        .where(ExperimentRecord.id.in_(experiment_ids))
    )
    found: dict[str, ExperimentSnapshot] = {}
    for experiment_id, status, run_id, run_status, done in session.execute(query.order_by(RunRecord.id)):
        found.setdefault(experiment_id, ExperimentSnapshot(status, {})).runs[run_id] = RunSnapshot(
            run_status, done
        )
    return found


def queue_depths(session: Session) -> Sequence[UnfinishedRuns]:
    """Unfinished runs, by queue and status."""
    place, left = (RunRecord.queue, RunRecord.status), func.sum(RunRecord.rounds - RunRecord.done)
    query = (
        select(*place, func.count(), left)
        # Not `not_in(ENDED)`: that reads all runs there are.
        .where(RunRecord.status.in_(UNENDED))
        .group_by(*place)
        .order_by(*place)
    )
    return [UnfinishedRuns(*row) for row in session.execute(query)]


def oversized(session: Session, limits: Mapping[str, int]) -> dict[str, int]:
    """Count, by queue, the queued runs that need more memory than the limit of the queue."""
    counts = {}
    for queue, limit in limits.items():
        waits = RunRecord.status == Status.QUEUED, RunRecord.queue == queue, RunRecord.memory_bytes > limit
        counts[queue] = session.scalar(select(func.count()).where(*waits)) or 0
    return counts


def progress(session: Session, experiment_id: str) -> RunProgress:
    """The progress of one experiment."""
    return progress_of(session, [experiment_id])[experiment_id]


def overview(session: Session, experiment_id: str) -> Overview:
    """The progress of one experiment, and its arms."""
    groups: list[_Group] = []
    arms: dict[int, ArmPoint] = {}
    for index, name, settings, *group in session.execute(_OVERVIEW, {"wanted": experiment_id}):
        groups.append(_Group(*group))
        arms[index] = ArmPoint(index, name, json.loads(settings))
    return Overview(_sum(groups), [arms[index] for index in sorted(arms)])


def progress_of(session: Session, experiment_ids: Sequence[str]) -> dict[str, RunProgress]:
    """The progress of several experiments, by id."""
    query = (
        select(RunRecord.experiment_id, RunRecord.status, *_SUMS)
        .where(RunRecord.experiment_id.in_(experiment_ids))
        .group_by(RunRecord.experiment_id, RunRecord.status)
    )
    groups: dict[str, list[_Group]] = {experiment_id: [] for experiment_id in experiment_ids}
    for row in session.execute(query):
        groups[row[0]].append(_Group(*row[1:]))
    return {experiment_id: _sum(members) for experiment_id, members in groups.items()}


@dataclass(frozen=True, slots=True)
class _Group:
    status: Status
    runs: int
    done: int
    rounds: int
    seconds: float
    diverged: int
    at_chance: int
    worse: int


def _sum(groups: Sequence[_Group]) -> RunProgress:
    done = sum(group.done for group in groups)
    rounds = sum(group.done if group.status is Status.SUCCEEDED else group.rounds for group in groups)
    runs: defaultdict[Status, int] = defaultdict(int)
    for group in groups:
        runs[group.status] += group.runs
    ended = [group for group in groups if group.status is Status.SUCCEEDED]
    warnings = {
        WarningKind.DIVERGED: sum(group.diverged for group in ended),
        WarningKind.AT_CHANCE: sum(group.at_chance for group in ended),
        WarningKind.WORSE: sum(group.worse for group in ended),
    }
    return RunProgress(done, rounds, dict(runs), _eta(groups), warnings)


def _eta(groups: Sequence[_Group]) -> float | None:
    done = sum(group.done for group in groups)
    running = sum(group.runs for group in groups if group.status is Status.RUNNING)
    if not running or not done:
        return None
    left = sum(group.rounds - group.done for group in groups if group.status not in ENDED)
    return left * sum(group.seconds for group in groups) / done / running
