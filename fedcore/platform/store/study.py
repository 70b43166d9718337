"""Trials of a study: rows of runs from the start, which are given their settings as they are
proposed, and stop where the pruner stops them.

Runs of a trial that is not proposed yet are held before their first round, as arms are at a rung.
What is proposed and stopped is a function of the specification, which names all proposals so far,
and of the values recorded; it is made in the transaction that records the last value it depends on,
under the lock of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import nan
from typing import NamedTuple

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import arms, curves, webhook_outbox
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import ArrivalRecord, ExperimentRecord, RunRecord, SearchRecord
from fedcore.simulation import pruning
from fedcore.simulation import study as proposals
from fedcore.simulation.halving import Decision, Verdict
from fedcore.simulation.study import TrialResult
from fedcore.spec import ExperimentSpec, stored_spec
from fedcore.spec.search import Study, list_batches
from fedcore.spec.space import Settings, find_conflict
from fedcore.spec.sweep import trial_name

KIND = "study"


class Proposed(NamedTuple):
    """Trials that have been given their settings."""

    valid: list[int]
    """Arms that may run."""
    invalid: list[int]
    """Arms whose settings are not valid together: their runs have failed."""
    until: int
    """The round up to which they may run."""


def with_first_trials(spec: ExperimentSpec) -> ExperimentSpec:
    """Return `spec` with the settings of the first trials, if its search is a study."""
    if not isinstance(spec.search, Study):
        return spec
    count = proposals.first_trials(spec.search, spec.rounds)
    return _with(spec, proposals.propose(spec.search, [], count, spec.rounds) if count else [])


def begin(session: Session, experiment_id: str, spec: ExperimentSpec) -> list[int]:
    """Record the study of a new experiment, whose runs are queued; hold the runs of later trials.

    Returns the trials whose settings are not valid together: their runs have failed.
    """
    search = spec.search
    assert isinstance(search, Study)
    # At the last rung, the last round, trials are judged and none is promoted.
    rungs = list(pruning.rungs(search, spec.rounds))
    values = {"kind": search.kind, "metric": search.metric, "maximise": search.maximise, "arrivals": 0}
    size = {"eta": 0, "arms": search.trials, "rounds": spec.rounds, "rungs": rungs}
    session.add(SearchRecord(experiment_id=experiment_id, **values, **size))
    session.flush()
    known = len(search.proposed)
    for batch in list_batches(search, spec.rounds):
        if batch.first < known:
            own = _of(experiment_id), RunRecord.arm >= batch.first, RunRecord.arm < batch.last
            session.execute(update(RunRecord).where(*own).values(until=rungs[batch.rung]))
    held = {"status": Status.AT_RUNG, "held_at": sql_now(), "until": 0}
    session.execute(update(RunRecord).where(_of(experiment_id), RunRecord.arm >= known).values(held))
    return _checked(session, experiment_id, spec, 0)[1]


class OpenStudy:
    """The study of an experiment within a transaction that has locked its search. Its stored
    specification is read once.
    """

    def __init__(self, session: Session, record: SearchRecord) -> None:
        self._session, self._record = session, record
        wanted = select(ExperimentRecord.spec).where(ExperimentRecord.id == record.experiment_id)
        self._use(stored_spec(session.scalars(wanted).one()))

    def _use(self, spec: ExperimentSpec) -> None:
        assert isinstance(spec.search, Study)
        self._spec, self._search = spec, spec.search

    def is_proposed(self, arm: int) -> bool:
        """True if a trial has its settings."""
        return arm < len(self._search.proposed)

    def first_rung(self, arm: int) -> int:
        """Index of the first rung that a trial comes to."""
        return pruning.batch_of(self._search, self._spec.rounds, arm).rung

    def values(self, run: RunRecord, round: int) -> list[float | None]:
        """The values of a run at a rung, or at its end, by metric: the values of this round, or the
        best so far.
        """
        if self._search.round == "final":
            return [curves.value(self._session, run, one.metric, round) for one in self._search.objectives]
        metric, maximise = self._search.metric, self._search.maximise
        known = curves.of_runs(self._session, [run.id], metric)
        bounds = known[run.id].bounds(metric) if run.id in known else []
        return [(bounds[1] if maximise else bounds[0]) if bounds else None]

    def decide(self) -> list[Decision]:
        """The decisions of the pruner that are due: about the first batch that has not ended, if its
        trials that have not ended wait at a rung.
        """
        if self._search.pruner is None:
            return []
        trials = self._trials()
        for batch in list_batches(self._search, self._spec.rounds):
            if not self.is_proposed(batch.first):
                break
            going = [trial for trial in range(batch.first, batch.last) if not trials.has_ended(trial)]
            if going:
                if not all(map(trials.waits, going)):
                    break
                rung = trials.rung[going[0]]
                return pruning.decide(self._search, self._spec.rounds, batch, rung, trials.values)
        return []

    def propose(self) -> Proposed | None:
        """Give the next trials their settings if all trials proposed so far have ended; None if
        there is nothing to propose.

        Those that may run are still held. Without PyTorch, in the reconciler, a Gaussian process
        cannot be asked: then the runs of the next trial go to workers before their first round, and
        once all are held again the worker proposes.
        """
        first, count = len(self._search.proposed), proposals.next_trials(self._search, self._spec.rounds)
        if not count:
            return None
        trials = self._trials()
        if not all(map(trials.has_ended, range(first))):
            return None
        results = [trials.result(trial) for trial in range(first)]
        if proposals.needs_torch(self._search, results) and not has_torch():
            return Proposed([first], [], 0)
        settings = proposals.propose(self._search, results, count, self._spec.rounds)
        experiment_id = self._record.experiment_id
        for arm, chosen in enumerate(settings, first):
            named = {"arm_name": trial_name(arm, chosen), "settings": chosen}
            self._session.execute(
                update(RunRecord).where(_of(experiment_id), RunRecord.arm == arm).values(named)
            )
        self._use(_with(self._spec, settings))
        valid, invalid = _checked(self._session, experiment_id, self._spec, first)
        self._session.execute(
            update(ExperimentRecord)
            .where(ExperimentRecord.id == experiment_id)
            .values(spec=self._spec.model_dump(mode="json"), updated_at=sql_now())
        )
        arms.replace(self._session, experiment_id, self._spec, self._spec.proposed_arms(first))
        return Proposed(valid, invalid, self._record.rungs[self.first_rung(first)])

    def _trials(self) -> _Trials:
        known = (
            select(
                ArrivalRecord.arm,
                ArrivalRecord.rung,
                ArrivalRecord.value,
                ArrivalRecord.further_values,
                ArrivalRecord.verdict,
            )
            .where(ArrivalRecord.experiment_id == self._record.experiment_id)
            .order_by(ArrivalRecord.sequence)
        )
        found = _Trials(self._record.rungs)
        for arm, rung, value, further, verdict in self._session.execute(known):
            found.add(arm, rung, [nan if one is None else one for one in (value, *(further or ()))], verdict)
        return found


class _Trials:
    """The trials of a study that have come to a rung. Changes in place."""

    def __init__(self, rungs: Sequence[int]) -> None:
        self._rungs = rungs
        self._last: dict[int, Sequence[float]] = {}
        """Values of each trial at its last rung."""
        self._verdicts: dict[int, Verdict | None] = {}
        self.rung: dict[int, int] = {}
        """Last rung of each trial."""
        self.values: dict[tuple[int, int], float] = {}
        """Values of the first metric, by trial and rung."""

    def add(self, trial: int, rung: int, values: Sequence[float], verdict: Verdict | None) -> None:
        """Add an arrival, after those at earlier rungs."""
        self.values[trial, rung] = values[0]
        self._last[trial], self._verdicts[trial], self.rung[trial] = values, verdict, rung

    def has_ended(self, trial: int) -> bool:
        """True if it has come to its last round, or was stopped."""
        return self._verdicts.get(trial) is Verdict.STOPPED or self.rung.get(trial) == len(self._rungs) - 1

    def waits(self, trial: int) -> bool:
        """True if it is at a rung and not decided about."""
        return trial in self.rung and self._verdicts[trial] is None

    def result(self, trial: int) -> TrialResult:
        """The result of a trial that has ended."""
        stopped = self._verdicts[trial] is Verdict.STOPPED
        return TrialResult(tuple(self._last[trial]), self._rungs[self.rung[trial]] if stopped else None)


def has_torch() -> bool:
    """True if PyTorch is installed; in the image of the API and the reconciler it is not."""
    return find_spec("torch") is not None


def _with(spec: ExperimentSpec, settings: Sequence[Settings]) -> ExperimentSpec:
    assert isinstance(spec.search, Study)
    proposed = (*spec.search.proposed, *settings)
    return spec.model_copy(update={"search": spec.search.model_copy(update={"proposed": proposed})})


def _checked(
    session: Session, experiment_id: str, spec: ExperimentSpec, first: int
) -> tuple[list[int], list[int]]:
    """Fail the runs of proposed trials, from the trial `first` on, whose settings are not valid
    together; returns the valid and the invalid ones.
    """
    assert isinstance(spec.search, Study)
    valid: list[int] = []
    invalid: list[int] = []
    for arm, chosen in enumerate(spec.search.proposed[first:], first):
        reason = find_conflict(spec, chosen)
        (invalid if reason else valid).append(arm)
        if reason:
            _fail(session, experiment_id, arm, reason)
    return valid, invalid


def _fail(session: Session, experiment_id: str, arm: int, reason: str) -> None:
    failed = (
        update(RunRecord)
        .where(_of(experiment_id), RunRecord.arm == arm)
        .values(status=Status.FAILED, held_at=None, error=reason, finished_at=sql_now())
    )
    webhook_outbox.of_runs(session, session.scalars(failed.returning(RunRecord.id)).all())


def _of(experiment_id: str) -> ColumnElement[bool]:
    return RunRecord.experiment_id == experiment_id
