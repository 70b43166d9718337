"""Searches: arms are judged once each rung, by what was committed, whoever comes last and whatever
happens meanwhile.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from fedcore.errors import ResourceNotFoundError, StaleLeaseError, StateConflictError
from fedcore.platform.store import (
    ENDED,
    Database,
    Status,
    experiments,
    lifecycle,
    open_database,
    runs,
    search,
)
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ArrivalRecord, ExperimentRecord, RunRecord
from fedcore.simulation.halving import Decision, Verdict, replay
from fedcore.simulation.report import StopReason
from fedcore.spec.search import SuccessiveHalving
from tests.builders.claims import (
    ATTEMPTS,
    checkpoint_key,
    claim,
    claimant,
    commit_slice,
    fail,
    lose,
    pause_or_finish,
    report,
)
from tests.builders.experiments import runs_of, status_of, submit
from tests.builders.transactions import on_postgresql, on_sqlite, read, write

LOSSES = (5.0, 3.0, 7.0, 1.0, 9.0, 2.0, 8.0, 6.0, 4.0)
"""Of nine arms, the same at every rung: arms 3, 5 and 1 are the best, in this order."""
HALVING = {"metric": "suboptimality", "min_rounds": 1}
EXPECTED = {3: 9, 5: 3, 1: 3}
"""Rounds of those that are promoted; the others play one."""


def searched(database: Database, kind: str = "successive_halving", **changes: Any) -> ExperimentRecord:
    sweep = {"local.lr": [0.01 * step for step in range(1, 10)]}
    document: dict[str, Any] = {"rounds": 9, "sweep": sweep, "search": HALVING | {"kind": kind}}
    return submit(database, **(document | changes))


def come(database: Database, held: Claim, losses: Sequence[float] = LOSSES) -> None:
    """Play a run up to where it may, commit that, and let go of it."""
    pause_or_finish(database, play(database, held, losses))


def play(database: Database, held: Claim, losses: Sequence[float] = LOSSES) -> Claim:
    if held.done == held.until:
        return held
    spread = {"suboptimality": losses[held.arm] + held.seed}
    commit_slice(
        database, held, [report(round, extra=spread) for round in range(held.done + 1, held.until + 1)]
    )
    return held.at(held.until, checkpoint_key(held, held.until - held.done))


def waiting(database: Database) -> Claim | None:
    return write(database, runs.claim, claimant(), 60.0)


def drain(database: Database, draw: Random | None = None) -> None:
    """Carry out what waits, several runs at a time, which end in an order that is drawn."""
    under_way: list[Claim] = []
    while True:
        while len(under_way) < (4 if draw else 1) and (held := waiting(database)):
            under_way.append(held)
        if not under_way:
            return
        come(database, under_way.pop(draw.randrange(len(under_way)) if draw else 0))


def arrivals(database: Database, experiment: ExperimentRecord) -> list[ArrivalRecord]:
    return list(read(database, search.arrivals, experiment.id))


def rounds_by_arm(database: Database, experiment: ExperimentRecord) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for run in runs_of(database, experiment):
        found.setdefault(run.arm, set()).add(run.done)
    return found


def assert_decided_as_recorded(database: Database, experiment: ExperimentRecord) -> None:
    """Played again from the record, everything is decided as it was.

    And the runs stand where that puts them.
    """
    ladder, known = (
        search.ladder_of(read(database, search.find, experiment.id)),
        arrivals(database, experiment),
    )
    assert [arrival.sequence for arrival in known] == list(range(1, len(known) + 1))
    told = replay(ladder, map(search.arrival_of, known))
    expected = {
        (decision.arm, decision.rung): (decision, by)
        for by, decisions in enumerate(told, 1)
        for decision in decisions
    }
    for arrival in known:
        decision, by = expected.pop((arrival.arm, arrival.rung))
        assert arrival.verdict is not None
        found = Decision(
            arrival.arm,
            arrival.rung,
            arrival.verdict,
            arrival.rank or 0,
            arrival.field or 0,
            arrival.places or 0,
        )
        assert (found, arrival.decided_by) == (decision, by)
    assert not expected
    ends = (*ladder.rungs, 9)
    promoted = {
        arm: sum(one.arm == arm and one.verdict is Verdict.PROMOTED for one in known) for arm in range(9)
    }
    for run in runs_of(database, experiment):
        assert run.held_at is None
        if run.status is Status.SUCCEEDED and run.diverged_round is None:
            assert run.done == ends[promoted[run.arm]]
            assert run.stop_reason is (None if run.done == 9 else StopReason.RUNG)
            assert None not in (run.model, run.finished_at)


def test_synchronous_search_ends_the_same_whatever_the_pace_of_workers(database: Database) -> None:
    experiment = searched(database, seeds=[0, 1])
    drain(database, Random(0))
    assert rounds_by_arm(database, experiment) == {arm: {EXPECTED.get(arm, 1)} for arm in range(9)}
    assert status_of(database, experiment) is Status.SUCCEEDED
    assert_decided_as_recorded(database, experiment)


def test_an_asynchronous_search_promotes_without_waiting_and_can_be_played_again(database: Database) -> None:
    experiment = searched(database, "asha")
    held = [claim(database) for _ in range(3)]
    for one in held:
        come(database, one)
    # Arm 1 is the best of the first three: it goes on, before arms that have not begun.
    going = claim(database)
    assert (going.arm, going.until, going.done) == (1, 3, 1)
    come(database, going)
    drain(database, Random(1))
    assert rounds_by_arm(database, experiment)[3] == {9}
    assert_decided_as_recorded(database, experiment)


@on_sqlite
def test_a_run_at_its_rung_waits_without_a_worker_and_shows_its_model(database: Database) -> None:
    experiment = searched(database)
    held = claim(database)
    come(database, held)
    run = read(database, runs.find, held.run_id)
    assert (run.status, run.done, run.until, run.lease_until) == (Status.AT_RUNG, 1, 1, None)
    assert run.held_at is not None
    assert run.model == f"{run.id}/model-1.safetensors"
    assert status_of(database, experiment) is Status.RUNNING
    (arrival,) = arrivals(database, experiment)
    assert (arrival.arm, arrival.rung, arrival.value, arrival.verdict) == (0, 0, LOSSES[0], None)


@on_sqlite
def test_an_arm_comes_to_its_rung_with_the_last_of_its_seeds_and_their_mean(database: Database) -> None:
    experiment = searched(database, seeds=[0, 1, 5])
    for expected in (0, 0, 1):
        come(database, claim(database))
        assert len(arrivals(database, experiment)) == expected
    assert arrivals(database, experiment)[0].value == LOSSES[0] + 2.0


def test_a_commit_that_is_repeated_or_stale_decides_nothing_again(database: Database) -> None:
    experiment = searched(database)
    held = play(database, claim(database))
    pause_or_finish(database, held)
    for act in (pause_or_finish, come):
        with pytest.raises(StaleLeaseError):
            act(database, held)
    assert len(arrivals(database, experiment)) == 1
    frozen = play(database, claim(database, lease_s=-1.0))
    write(database, runs.renew, frozen, -1.0)
    assert lose(database) == [frozen.run_id]
    # Its worker died between the commit and the rung: whoever claims it next lets it arrive.
    again = claim(database)
    assert (again.run_id, again.done, again.until) == (frozen.run_id, 1, 1)
    pause_or_finish(database, again)
    with pytest.raises(StaleLeaseError):
        pause_or_finish(database, frozen)
    assert len(arrivals(database, experiment)) == 2
    drain(database)
    assert_decided_as_recorded(database, experiment)


@pytest.mark.parametrize("way", ["error", "lost"])
def test_an_arm_that_fails_is_the_worst_and_holds_nobody_up(database: Database, way: str) -> None:
    experiment = searched(database, seeds=[0, 1])
    failing = claim(database)
    while (held := waiting(database)) is not None and held.arm < 8:
        come(database, held)
    assert held is not None
    come(database, held)
    come(database, claim(database))
    assert status_of(database, experiment) is Status.RUNNING
    if way == "error":
        fail(database, failing)
    else:
        write(database, runs.renew, failing, -1.0)
        with database.transaction() as session:
            session.get_one(RunRecord, failing.run_id).attempts = ATTEMPTS
        assert lose(database) == [failing.run_id]
    drain(database)
    assert rounds_by_arm(database, experiment) == {0: {0, 1}} | {
        arm: {EXPECTED.get(arm, 1)} for arm in range(1, 9)
    }
    assert status_of(database, experiment) is Status.FAILED
    (of_failed,) = (arrival for arrival in arrivals(database, experiment) if arrival.arm == 0)
    assert (of_failed.value, of_failed.verdict, of_failed.rank) == (None, Verdict.STOPPED, 9)
    # A retry brings the run to where its arm was stopped, and no further.
    write(database, lifecycle.retry, experiment.id)
    drain(database)
    assert rounds_by_arm(database, experiment)[0] == {1}
    assert status_of(database, experiment) is Status.SUCCEEDED
    assert_decided_as_recorded(database, experiment)


@on_sqlite
def test_an_arm_that_diverges_or_has_no_value_is_the_worst(database: Database) -> None:
    experiment = searched(database)
    diverged = claim(database)
    commit_slice(database, diverged, [report(1, diverged=True)])
    ended = diverged.at(1, checkpoint_key(diverged, 1))
    write(database, runs.finish, ended, model="model", provenance={}, diverged_round=1)
    come(database, claim(database), [math.nan] * 9)
    drain(database)
    first = {arrival.arm: arrival for arrival in arrivals(database, experiment) if arrival.rung == 0}
    assert [first[arm].rank for arm in (0, 1)] == [8, 9]
    assert [(first[arm].value, first[arm].verdict) for arm in (0, 1)] == [(None, Verdict.STOPPED)] * 2
    assert_decided_as_recorded(database, experiment)


@on_sqlite
def test_pause_holds_what_waits_at_a_rung_and_what_is_promoted_meanwhile(database: Database) -> None:
    experiment = searched(database)
    last = claim(database)
    for _ in range(8):
        come(database, claim(database))
    write(database, lifecycle.pause, experiment.id)
    assert {run.status for run in runs_of(database, experiment)} == {Status.PAUSED, Status.RUNNING}
    write(database, lifecycle.resume, experiment.id)
    assert {run.status for run in runs_of(database, experiment)} == {Status.AT_RUNG, Status.RUNNING}
    write(database, lifecycle.pause, experiment.id)
    come(database, last)
    assert {run.arm for run in runs_of(database, experiment) if run.status is Status.PAUSED} == set(EXPECTED)
    assert status_of(database, experiment) is Status.PAUSED
    assert waiting(database) is None
    write(database, lifecycle.resume, experiment.id)
    drain(database)
    assert_decided_as_recorded(database, experiment)


@on_sqlite
def test_cancel_ends_what_waits_at_a_rung_and_retry_puts_it_back(database: Database) -> None:
    experiment = searched(database)
    last = claim(database)
    for _ in range(8):
        come(database, claim(database))
    write(database, lifecycle.cancel, experiment.id)
    come(database, last)
    assert {run.status for run in runs_of(database, experiment)} == {Status.CANCELLED}
    assert len(arrivals(database, experiment)) == 9
    write(database, lifecycle.retry, experiment.id)
    drain(database)
    assert rounds_by_arm(database, experiment) == {arm: {EXPECTED.get(arm, 1)} for arm in range(9)}
    assert_decided_as_recorded(database, experiment)


@on_sqlite
def test_runs_that_stopped_early_are_judged_by_their_last_value_and_stay_as_they_are(
    database: Database,
) -> None:
    experiment = searched(
        database, rounds=18, search=HALVING | {"kind": "successive_halving", "min_rounds": 2}
    )
    while held := waiting(database):
        if held.done == 0 and held.arm in (3, 5):
            commit_slice(database, held, [report(1, extra={"suboptimality": LOSSES[held.arm]})])
            early = held.at(1, checkpoint_key(held, 1))
            write(database, runs.finish, early, model="model", provenance={}, stop_reason=StopReason.TARGET)
        else:
            come(database, held)
    assert rounds_by_arm(database, experiment)[3] == {1}
    assert [
        arrival.arm
        for arrival in arrivals(database, experiment)
        if arrival.verdict is Verdict.PROMOTED and arrival.rung == 1
    ] == [3]
    assert {run.stop_reason for run in runs_of(database, experiment) if run.arm == 3} == {StopReason.TARGET}


def test_any_history_of_workers_and_users_ends_as_recorded(database: Database) -> None:
    draw, experiment = Random(2), searched(database, seeds=[0, 1])
    held: list[Claim] = []
    for _ in range(80):
        kind, name = draw.choice(WORK * 3 + WISHES)
        if kind == "wish":
            steer(database, name, experiment)
        elif name == "claim":
            taken = write(database, runs.claim, claimant(), draw.choice([60.0, 60.0, 60.0, -1.0]))
            held += [taken] if taken else []
        elif held:
            quietly(WORKED[name], database, draw.choice(held))
    for _ in range(3):
        for run in held:
            quietly(expire, database, run)
        lose(database)
        for wish in ("resume", "retry"):
            steer(database, wish, experiment)
        drain(database, draw)
    assert {run.status for run in runs_of(database, experiment)} == {Status.SUCCEEDED}
    assert_decided_as_recorded(database, experiment)


WORK = [("work", name) for name in ("claim", "claim", "come", "come", "play", "park", "fail")]
WISHES = [("wish", name) for name in ("pause", "resume", "resume", "cancel", "retry", "retry")]


def steer(database: Database, wish: str, experiment: ExperimentRecord) -> None:
    quietly(lambda: write(database, getattr(lifecycle, wish), experiment.id))


def quietly(act: Callable[..., Any], *given: Any) -> None:
    """Do what may be refused."""
    with suppress(StaleLeaseError, StateConflictError):
        act(*given)


def expire(database: Database, held: Claim) -> None:
    write(database, runs.renew, held, -1.0)


def fail_for_now(database: Database, held: Claim) -> None:
    write(database, runs.fail, held, "OSError: no space", ATTEMPTS)


WORKED: dict[str, Callable[..., Any]] = {
    "come": come,
    "play": play,
    "park": pause_or_finish,
    "fail": fail_for_now,
}


@on_postgresql
def test_results_that_come_at_once_are_each_counted_and_none_waits_for_another_in_turn(
    database_url: str, database: Database
) -> None:
    experiment = searched(database)
    held = [play(database, claim(database)) for _ in range(9)]

    def act(one: Claim | None) -> None:
        other = open_database(database_url)
        if one is None:
            for wish in (lifecycle.pause, lifecycle.resume) * 2:
                in_time(write, other, wish, experiment.id)
        else:
            in_time(pause_or_finish, other, one)
        other.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, [None, *held]))
    assert sorted(arrival.arm for arrival in arrivals(database, experiment)) == list(range(9))
    drain(database)
    assert rounds_by_arm(database, experiment) == {arm: {EXPECTED.get(arm, 1)} for arm in range(9)}
    assert_decided_as_recorded(database, experiment)


def in_time(act: Callable[..., Any], *given: Any) -> None:
    """Do it again where a lock was long in coming, as workers do.

    Two that wait for each other are another matter.
    """
    for _ in range(20):
        try:
            act(*given)
        except OperationalError as error:
            if "lock timeout" not in str(error):
                raise
        else:
            return
    raise TimeoutError


@on_sqlite
def test_an_experiment_without_a_search_has_none_and_its_runs_no_bound(database: Database) -> None:
    experiment = submit(database)
    with pytest.raises(ResourceNotFoundError, match="has no search"):
        read(database, search.find, experiment.id)
    assert claim(database).until == 4


@on_sqlite
def test_a_search_is_deleted_with_its_experiment(database: Database) -> None:
    experiment = searched(database)
    come(database, claim(database))
    write(database, experiments.delete, experiment.id)
    assert arrivals(database, experiment) == []


@on_sqlite
def test_stored_search_is_the_one_asked_for(database: Database) -> None:
    experiment = searched(database)
    kept = read(database, search.find, experiment.id)
    assert (kept.kind, kept.metric, kept.rungs, kept.rounds) == (
        "successive_halving",
        "suboptimality",
        [1, 3],
        9,
    )
    asked = SuccessiveHalving.model_validate(HALVING | {"kind": "successive_halving"})
    assert search.ladder_of(kept) == type(search.ladder_of(kept)).of(asked, 9, 9)
    assert ENDED.isdisjoint({Status.AT_RUNG})
