"""Webhook deliveries are written with the change they tell of: every change once, and nothing else."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from fedcore.platform.store import Database, Status, experiments, lifecycle, webhook_deliveries, webhooks
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from tests.builders.claims import claim, commit, fail, finish, lose
from tests.builders.experiments import run_of, runs_of, submit
from tests.builders.transactions import on_postgresql, read, write
from tests.builders.webhooks import create_webhook, data_of, pending_deliveries, pending_kinds, webhook_now


def test_a_life_is_told_in_order_and_whole(database: Database) -> None:
    hook = create_webhook(database)
    experiment = submit(database)
    finish(database, claim(database))
    assert pending_kinds(database, hook) == [
        *(
            "run.queued",
            "experiment.queued",
            "run.running",
            "experiment.running",
            "run.succeeded",
            "experiment.succeeded",
        ),
    ]
    run = run_of(database, experiment)
    last_of_run, last = pending_deliveries(database, hook)[-2:]
    told_of_run = {
        "experiment_id": experiment.id,
        "run_id": run.id,
        "status": "succeeded",
        "rounds_done": 4,
        "stop_reason": None,
    }
    assert told_of_run.items() <= data_of(last_of_run).items()
    assert {"experiment_id": experiment.id, "name": "one run", "status": "succeeded"}.items() <= data_of(
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
        (lifecycle.cancel, ["run.cancelled", "experiment.cancelled"]),
        (lifecycle.pause, ["run.paused", "experiment.paused"]),
    ],
)
def test_actions_of_users_are_told_once_however_often_they_are_repeated(
    database: Database, act: Callable[..., object], expected: list[str]
) -> None:
    experiment = submit(database)
    hook = create_webhook(database)
    for _ in range(3):
        write(database, act, experiment.id)
    assert pending_kinds(database, hook) == expected


def test_resumed_experiments_are_told(database: Database) -> None:
    hook = create_webhook(database)
    experiment = submit(database)
    write(database, lifecycle.pause, experiment.id)
    write(database, lifecycle.resume, experiment.id)
    fail(database, claim(database))
    write(database, lifecycle.retry, experiment.id)
    assert pending_kinds(database, hook)[2:] == [
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
    hook = create_webhook(database)
    submit(database)
    claim(database, lease_s=-1.0)
    lose(database)
    assert pending_kinds(database, hook)[-2:] == ["experiment.running", "run.queued"]


def test_a_change_that_is_rolled_back_is_not_told(database: Database) -> None:
    hook = create_webhook(database)
    experiment = submit(database)
    before = pending_kinds(database, hook)
    with suppress(ZeroDivisionError), database.transaction() as session:
        lifecycle.cancel(session, experiment.id)
        raise ZeroDivisionError
    assert pending_kinds(database, hook) == before
    assert run_of(database, experiment).status is Status.QUEUED


def test_a_long_error_is_told_by_its_beginning(database: Database) -> None:
    hook = create_webhook(database, kinds=[EventKind.RUN_FAILED])
    submit(database)
    fail(database, claim(database), "x" * 100_000)
    assert data_of(pending_deliveries(database, hook)[0])["error"] == "x" * 2_000


def test_rounds_are_no_change_of_status(database: Database) -> None:
    submit(database)
    held = claim(database)
    hook = create_webhook(database)
    commit(database, commit(database, held))
    assert pending_kinds(database, hook) == []


def test_a_webhook_is_told_what_it_asked_for_of_its_owners_experiments(database: Database) -> None:
    first, second = submit(database, owner="ann"), submit(database, owner="ann")
    hooks = {
        "all": create_webhook(database, owner="ann"),
        "ends": create_webhook(database, owner="ann", kinds=ENDINGS),
        "one": create_webhook(
            database, owner="ann", kinds=[EventKind.EXPERIMENT_CANCELLED], experiment_id=first.id
        ),
        "other": create_webhook(database, owner="bob"),
    }
    disabled = create_webhook(database, owner="ann")
    write(database, webhooks.disable, disabled.id, "by hand")
    for experiment in (first, second):
        write(database, lifecycle.cancel, experiment.id)
    stories = {
        name: [
            (kind, data_of(row)["experiment_id"])
            for kind, row in zip(
                pending_kinds(database, hook), pending_deliveries(database, hook), strict=True
            )
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
    assert pending_kinds(database, disabled) == []


def test_a_sweep_tells_of_each_of_its_runs(database: Database) -> None:
    hook = create_webhook(database, kinds=[EventKind.RUN_QUEUED])
    experiment = submit(database, seeds=list(range(50)))
    assert [data_of(row)["run_id"] for row in pending_deliveries(database, hook)] == [
        run.id for run in runs_of(database, experiment)
    ]


@on_postgresql
def test_a_webhook_that_is_being_deleted_holds_up_a_change_and_does_not_spoil_it(database: Database) -> None:
    experiment = submit(database)
    hook = create_webhook(database)
    deleted, waiting = Event(), Event()

    def delete() -> None:
        with database.transaction() as session:
            webhooks.delete(session, hook.id)
            deleted.set()
            waiting.wait(60)

    def cancel() -> Status:
        deleted.wait(60)
        waiting.set()
        return write(database, lifecycle.cancel, experiment.id).status

    with ThreadPoolExecutor(2) as both:
        gone, changed = both.submit(delete), both.submit(cancel)
        gone.result()
        assert changed.result() is Status.CANCELLED


def test_every_status_has_its_event() -> None:
    # Experiments do not wait at rungs.
    of_experiments = {f"experiment.{status}" for status in set(Status) - {Status.AT_RUNG}}
    assert {kind.value for kind in EventKind} == {f"run.{status}" for status in Status} | of_experiments


def test_a_deleted_experiment_still_has_its_end_told(database: Database) -> None:
    hook = create_webhook(database, kinds=ENDINGS)
    experiment = submit(database)
    write(database, lifecycle.cancel, experiment.id)
    write(database, experiments.delete, experiment.id)
    assert pending_kinds(database, hook) == ["experiment.cancelled"]
    assert read(database, webhook_deliveries.any_due)
    assert webhook_now(database, hook).failing_since is None
