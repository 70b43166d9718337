"""Webhook deliveries are written with the change they tell of: every change once, and nothing else."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from fedcore.platform.store import Database, Status, experiments, webhook_deliveries, webhooks
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from tests.builders.claims import (
    claim,
    commit,
    fail,
    finish,
    lose,
    on_postgresql,
    read,
    submit,
    the_run,
    the_runs,
    write,
)
from tests.builders.webhooks import data, hook_now, listen, story, told


def test_a_life_is_told_in_order_and_whole(database: Database) -> None:
    hook = listen(database)
    experiment = submit(database)
    finish(database, claim(database))
    assert story(database, hook) == [
        *(
            "run.queued",
            "experiment.queued",
            "run.running",
            "experiment.running",
            "run.succeeded",
            "experiment.succeeded",
        ),
    ]
    run = the_run(database, experiment)
    last_of_run, last = told(database, hook)[-2:]
    told_of_run = {
        "experiment_id": experiment.id,
        "run_id": run.id,
        "status": "succeeded",
        "rounds_done": 4,
        "stop_reason": None,
    }
    assert told_of_run.items() <= data(last_of_run).items()
    assert {"experiment_id": experiment.id, "name": "one run", "status": "succeeded"}.items() <= data(
        last
    ).items()
    body = json.loads(last.body)
    assert set(body) == {"type", "timestamp", "data"}
    assert (body["type"], body["timestamp"]) == (
        "experiment.succeeded",
        last.created_at.isoformat().replace("+00:00", "Z"),
    )


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (experiments.cancel, ["run.cancelled", "experiment.cancelled"]),
        (experiments.pause, ["run.paused", "experiment.paused"]),
    ],
)
def test_actions_of_users_are_told_once_however_often_they_are_repeated(
    database: Database, act: Callable[..., object], expected: list[str]
) -> None:
    experiment = submit(database)
    hook = listen(database)
    for _ in range(3):
        write(database, act, experiment.id)
    assert story(database, hook) == expected


def test_resumed_experiments_are_told(database: Database) -> None:
    hook = listen(database)
    experiment = submit(database)
    write(database, experiments.pause, experiment.id)
    write(database, experiments.resume, experiment.id)
    fail(database, claim(database))
    write(database, experiments.retry, experiment.id)
    assert story(database, hook)[2:] == [
        *(
            "run.paused",
            "experiment.paused",
            "run.queued",
            "experiment.queued",
            "run.running",
            "experiment.running",
        ),
        *("run.failed", "experiment.failed", "run.queued", "experiment.running"),
    ]


def test_a_run_that_lost_its_worker_is_told_of(database: Database) -> None:
    hook = listen(database)
    submit(database)
    claim(database, lease_s=-1.0)
    lose(database)
    assert story(database, hook)[-2:] == ["experiment.running", "run.queued"]


def test_a_change_that_is_rolled_back_is_not_told(database: Database) -> None:
    hook = listen(database)
    experiment = submit(database)
    before = story(database, hook)
    with suppress(ZeroDivisionError), database.transaction() as session:
        experiments.cancel(session, experiment.id)
        raise ZeroDivisionError
    assert story(database, hook) == before
    assert the_run(database, experiment).status is Status.QUEUED


def test_a_long_error_is_told_by_its_beginning(database: Database) -> None:
    hook = listen(database, kinds=[EventKind.RUN_FAILED])
    submit(database)
    fail(database, claim(database), "x" * 100_000)
    assert data(told(database, hook)[0])["error"] == "x" * 2_000


def test_rounds_are_no_change_of_status(database: Database) -> None:
    submit(database)
    held = claim(database)
    hook = listen(database)
    commit(database, commit(database, held))
    assert story(database, hook) == []


def test_a_webhook_is_told_what_it_asked_for_of_its_owners_experiments(database: Database) -> None:
    first, second = submit(database, owner="ann"), submit(database, owner="ann")
    hooks = {
        "all": listen(database, owner="ann"),
        "ends": listen(database, owner="ann", kinds=ENDINGS),
        "one": listen(database, owner="ann", kinds=[EventKind.EXPERIMENT_CANCELLED], experiment_id=first.id),
        "other": listen(database, owner="bob"),
    }
    disabled = listen(database, owner="ann")
    write(database, webhooks.disable, disabled.id, "by hand")
    for experiment in (first, second):
        write(database, experiments.cancel, experiment.id)
    stories = {
        name: [
            (kind, data(row)["experiment_id"])
            for kind, row in zip(story(database, hook), told(database, hook), strict=True)
        ]
        for name, hook in hooks.items()
    }
    cancelled = [("experiment.cancelled", first.id), ("experiment.cancelled", second.id)]
    runs = [("run.cancelled", first.id), cancelled[0], ("run.cancelled", second.id), cancelled[1]]
    assert stories == {
        "all": runs,
        "ends": cancelled,
        "one": cancelled[:1],
        "other": [],
    }
    assert story(database, disabled) == []


def test_a_sweep_tells_of_each_of_its_runs(database: Database) -> None:
    hook = listen(database, kinds=[EventKind.RUN_QUEUED])
    experiment = submit(database, seeds=list(range(50)))
    assert [data(row)["run_id"] for row in told(database, hook)] == [
        run.id for run in the_runs(database, experiment)
    ]


@on_postgresql
def test_a_webhook_that_is_being_deleted_holds_up_a_change_and_does_not_spoil_it(database: Database) -> None:
    experiment = submit(database)
    hook = listen(database)
    deleted, waiting = Event(), Event()

    def delete() -> None:
        with database.transaction() as session:
            webhooks.delete(session, hook.id)
            deleted.set()
            waiting.wait(60)

    def cancel() -> Status:
        deleted.wait(60)
        waiting.set()
        return write(database, experiments.cancel, experiment.id).status

    with ThreadPoolExecutor(2) as both:
        gone, changed = both.submit(delete), both.submit(cancel)
        gone.result()
        assert changed.result() is Status.CANCELLED


def test_every_status_has_its_event() -> None:
    assert {EventKind.of_run(status).value for status in Status} == {f"run.{status}" for status in Status}
    # Of a run only.
    others = set(Status) - {Status.AT_RUNG}
    assert {*map(EventKind.of_run, Status), *map(EventKind.of_experiment, others)} == set(EventKind)


def test_a_deleted_experiment_still_has_its_end_told(database: Database) -> None:
    hook = listen(database, kinds=ENDINGS)
    experiment = submit(database)
    write(database, experiments.cancel, experiment.id)
    write(database, experiments.delete, experiment.id)
    assert story(database, hook) == ["experiment.cancelled"]
    assert read(database, webhook_deliveries.any_due)
    assert hook_now(database, hook).failing_since is None
