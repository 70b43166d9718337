"""Cancel, pause, resume, retry: in every state of a run, again, at the boundary, and what they make
of the experiment.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.store import Database, Status, experiments, lifecycle, runs
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.lifecycle import derive_status
from fedcore.platform.store.tables import ExperimentRecord
from tests.builders.claims import (
    LEASE_S,
    QUEUE,
    claim,
    claimant,
    commit,
    commit_slice,
    fail,
    finish,
    lose,
    report,
)
from tests.builders.experiments import run_of, runs_of, state_of, status_of, submit
from tests.builders.transactions import on_postgresql, write

ACTIONS: dict[str, Callable[..., ExperimentRecord]] = {
    "cancel": lifecycle.cancel,
    "pause": lifecycle.pause,
    "resume": lifecycle.resume,
    "retry": lifecycle.retry,
}
NOTHING_TO = "nothing to"
PAUSED = "has failed; use `resume` to continue its paused runs"
RETRY = "use `retry` for failed and cancelled runs"
OUTCOMES = {
    "queued": {"cancel": "cancelled", "pause": "paused", "resume": "queued", "retry": "queued"},
    "running": {"cancel": "cancelling", "pause": "pausing", "resume": "running", "retry": "running"},
    "pausing": {"cancel": "cancelling", "pause": "pausing", "resume": "running", "retry": PAUSED},
    "cancelling": {
        "cancel": "cancelling",
        "pause": f"is about to end (cancelled): {NOTHING_TO} pause",
        "resume": f"is about to end (cancelled): {RETRY}",
        "retry": "running",
    },
    "paused": {"cancel": "cancelled", "pause": "paused", "resume": "queued", "retry": PAUSED},
    "succeeded": {
        "cancel": f"has ended (succeeded): {NOTHING_TO} cancel",
        "pause": f"has ended (succeeded): {NOTHING_TO} pause",
        "resume": f"has ended (succeeded): {NOTHING_TO} resume",
        "retry": f"has ended (succeeded): {NOTHING_TO} retry",
    },
    "failed": {
        "cancel": f"has ended (failed): {NOTHING_TO} cancel",
        "pause": f"has ended (failed): {NOTHING_TO} pause",
        "resume": f"has ended (failed): {RETRY}",
        "retry": "queued",
    },
    "cancelled": {
        "cancel": "cancelled",
        "pause": f"has ended (cancelled): {NOTHING_TO} pause",
        "resume": f"has ended (cancelled): {RETRY}",
        "retry": "queued",
    },
}
"""Effect of each action on a run in each status: its new status, or the message of the conflict."""
WAYS = {
    "queued": (),
    "running": ("begin",),
    "pausing": ("begin", "pause"),
    "cancelling": ("begin", "cancel"),
    "paused": ("pause",),
    "succeeded": ("begin", "finish"),
    "failed": ("begin", "fail"),
    "cancelled": ("cancel",),
}
"""How a new run comes into a state."""


def act(database: Database, action: str, experiment: ExperimentRecord) -> ExperimentRecord:
    return write(database, ACTIONS[action], experiment.id)


def attempt(database: Database, action: str, experiment: ExperimentRecord) -> str:
    """The state of the run after `action`, or the sentence of the conflict."""
    try:
        act(database, action, experiment)
    except StateConflictError as conflict:
        return str(conflict).removeprefix("no run of ").removeprefix(f"experiment {experiment.id} ")
    return state_of(run_of(database, experiment))


def bring(database: Database, state: str, queue: str = QUEUE) -> ExperimentRecord:
    """An experiment of one run in this state; where it has begun, one of its four rounds is
    done.
    """
    experiment, held = submit(database, execution={"queue": queue}), None
    for step in WAYS[state]:
        match step:
            case "begin":
                held = commit(database, claim(database, queue=queue))
            case "finish" if held:
                finish(database, held)
            case "fail" if held:
                fail(database, held)
            case _:
                act(database, step, experiment)
    return experiment


@pytest.mark.parametrize("state", OUTCOMES)
def test_an_action_has_one_outcome_in_each_state_however_often_it_is_repeated(
    database: Database, state: str
) -> None:
    for action, outcome in OUTCOMES[state].items():
        experiment = bring(database, state, queue=action)
        for _ in range(2):
            assert attempt(database, action, experiment) == outcome


@pytest.mark.parametrize("state", OUTCOMES)
def test_an_action_in_conflict_changes_nothing(database: Database, state: str) -> None:
    experiment = bring(database, state)
    before = run_of(database, experiment)
    for action, outcome in OUTCOMES[state].items():
        if outcome not in OUTCOMES:
            attempt(database, action, experiment)
    after = run_of(database, experiment)
    assert (state_of(after), after.queued_at, after.finished_at) == (
        state,
        before.queued_at,
        before.finished_at,
    )


def test_missing_experiment_cannot_be_acted_on(database: Database) -> None:
    for action in ACTIONS.values():
        with pytest.raises(ResourceNotFoundError, match="'exp_none'"):
            write(database, action, "exp_none")


@pytest.mark.parametrize(
    ("state", "after"),
    [("pausing", Status.PAUSED), ("cancelling", Status.CANCELLED), ("running", Status.QUEUED)],
)
@pytest.mark.parametrize("way", ["handed back", "lost"])
def test_a_request_is_applied_when_the_claim_ends(
    database: Database, state: str, after: Status, way: str
) -> None:
    experiment = submit(database)
    held = commit(database, claim(database), lease_s=-1)
    for step in WAYS[state][1:]:
        act(database, step, experiment)
    if way == "handed back":
        write(database, runs.release, held)
    else:
        assert lose(database) == [held.run_id]
    run = run_of(database, experiment)
    assert (run.status, run.request, run.done, run.lease_until) == (after, "none", 1, None)
    assert (run.finished_at is not None) == (after is Status.CANCELLED)


@pytest.mark.parametrize(
    ("state", "control"), [("running", "continue"), ("pausing", "pause"), ("cancelling", "cancel")]
)
def test_a_worker_learns_of_a_request_at_its_next_commit_and_at_its_next_heartbeat(
    database: Database, state: str, control: str
) -> None:
    experiment = submit(database)
    held = commit(database, claim(database))
    for step in WAYS[state][1:]:
        act(database, step, experiment)
    assert write(database, runs.renew, held, 60.0) == control
    assert commit_slice(database, held) == control


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_run_that_ends_before_a_request_is_applied_has_simply_ended(
    database: Database, action: str
) -> None:
    experiment = submit(database)
    held = claim(database)
    act(database, action, experiment)
    finish(database, held)
    assert state_of(run_of(database, experiment)) == "succeeded"


def test_a_run_that_is_retried_keeps_its_rounds_and_has_all_its_attempts_again(database: Database) -> None:
    experiment = submit(database)
    write(database, runs.release, commit(database, claim(database)))
    fail(database, claim(database))
    before = run_of(database, experiment)
    assert (before.status, before.attempts) == (Status.FAILED, 1)
    act(database, "retry", experiment)
    run = run_of(database, experiment)
    assert (run.done, run.checkpoint, run.fence) == (1, before.checkpoint, before.fence)
    assert (run.error, run.attempts, run.finished_at) == (None, 0, None)
    assert run.queued_at > before.queued_at


def test_an_action_concerns_only_the_runs_that_it_makes_sense_for(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    finish(database, claim(database))
    claim(database)
    act(database, "pause", experiment)
    assert [state_of(run) for run in runs_of(database, experiment)] == ["succeeded", "pausing", "paused"]
    act(database, "cancel", experiment)
    assert [state_of(run) for run in runs_of(database, experiment)] == [
        "succeeded",
        "cancelling",
        "cancelled",
    ]
    act(database, "retry", experiment)
    assert [state_of(run) for run in runs_of(database, experiment)] == ["succeeded", "running", "queued"]


@pytest.mark.parametrize(
    ("counts", "started", "status"),
    [
        ({"queued": 3}, False, "queued"),
        ({"queued": 3}, True, "running"),
        ({"queued": 1, "failed": 1, "paused": 1}, True, "running"),
        ({"running": 1, "succeeded": 1, "cancelled": 1}, True, "running"),
        ({"paused": 2}, False, "paused"),
        ({"paused": 1, "cancelled": 1, "failed": 1, "succeeded": 1}, True, "paused"),
        ({"cancelled": 1, "failed": 1, "succeeded": 1}, True, "cancelled"),
        ({"failed": 1, "succeeded": 1}, True, "failed"),
        ({"succeeded": 2}, True, "succeeded"),
    ],
)
def test_the_status_of_an_experiment_follows_from_its_runs(
    counts: dict[str, int], started: bool, status: str
) -> None:
    assert derive_status({Status(word): number for word, number in counts.items()}, started=started) == status


def test_an_experiment_is_dated_by_its_first_claim_and_its_last_end(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1])
    assert (experiment.status, experiment.started_at, experiment.finished_at) == (Status.QUEUED, None, None)
    finish(database, claim(database))
    begun = write(database, experiments.find, experiment.id)
    assert (begun.status, begun.finished_at) == (Status.RUNNING, None)
    fail(database, claim(database), error="ValueError: odd")
    ended = write(database, experiments.find, experiment.id)
    assert (ended.status, ended.error) == (Status.FAILED, "ValueError: odd")
    assert ended.finished_at is not None
    first = runs_of(database, experiment)[0].started_at
    assert ended.started_at == begun.started_at == first


def test_retry_reopens_an_experiment(database: Database) -> None:
    experiment = bring(database, "failed")
    again = act(database, "retry", experiment)
    assert (again.status, again.finished_at, again.error) == (Status.RUNNING, None, None)


def test_concurrent_finishers_agree_on_the_status_of_their_experiment(database: Database) -> None:
    experiment = submit(database, seeds=list(range(8)))
    held = [claim(database, f"worker-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(lambda one: finish(database, one), held))
    assert status_of(database, experiment) is Status.SUCCEEDED


def test_users_and_workers_at_once_do_not_lock_each_other_out(database: Database) -> None:
    experiment = submit(database, seeds=list(range(8)))

    def work(number: int) -> None:
        held = write(database, runs.claim, claimant(f"worker-{number}"), 60.0)
        if held is not None:
            write(database, runs.release, commit(database, held))

    def steer(number: int) -> None:
        act(database, "resume" if number % 2 else "pause", experiment)

    with ThreadPoolExecutor(8) as people:
        steps = [people.submit(work if number % 3 else steer, number) for number in range(24)]
        for step in steps:
            step.result()
    act(database, "resume", experiment)
    assert {state_of(run) for run in runs_of(database, experiment)} == {"queued"}


def test_a_pause_at_the_moment_at_which_a_worker_lets_go_is_not_lost(database: Database) -> None:
    experiment = submit(database)
    with ThreadPoolExecutor(2) as people:
        for _ in range(15):
            letting_go = people.submit(write, database, runs.release, claim(database))
            people.submit(act, database, "pause", experiment).result()
            letting_go.result()
            assert state_of(run_of(database, experiment)) == "paused"
            act(database, "resume", experiment)


@on_postgresql
def test_transactions_that_end_runs_of_an_experiment_do_not_lock_each_other_out(database: Database) -> None:
    """Each writes to its run twice, for which PostgreSQL locks the key of the experiment."""
    experiment = submit(database, seeds=[0, 1])
    both = Barrier(2)

    def end(held: Claim) -> None:
        with database.transaction() as session:
            runs.commit_slice(session, held, [report(1)], checkpoint="1", lease_s=LEASE_S, provenance={})
            runs.renew(session, held.at(1, "1"), LEASE_S)
            both.wait()
            runs.finish(session, held.at(1, "1"), model=None, provenance={})

    with ThreadPoolExecutor(2) as ending:
        list(ending.map(end, [claim(database, f"worker-{number}") for number in range(2)]))
    assert status_of(database, experiment) is Status.SUCCEEDED
