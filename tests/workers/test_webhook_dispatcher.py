"""The sender: whatever is due arrives, signed, and no receiver holds up another."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import update
from standardwebhooks import Webhook

from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import Database, Status, webhook_deliveries, webhooks
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedcore.platform.webhooks.events import EventKind
from fedcore.settings import Settings
from tests.builders.claims import claim, finish
from tests.builders.experiments import run_of, submit
from tests.builders.transactions import write
from tests.builders.webhooks import pending_deliveries, pending_kinds, webhook_now
from tests.support.polling import eventually
from tests.support.receiver import LOOPBACK, Receiver, receiving
from workers.reconciler import run_forever
from workers.webhook_dispatcher import OF_ONE_OWNER, dispatch_webhooks

LIMIT_S = 60.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def settings(home: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {"home": home, "webhook_networks": LOOPBACK}
    return Settings(_env_file=None, **(given | changes))


def listen(database: Database, url: str, owner: str = "local") -> tuple[WebhookRecord, str]:
    return write(database, webhooks.create, owner=owner, url=url, kinds=tuple(EventKind))


def ping(database: Database, hook: WebhookRecord) -> None:
    write(database, webhook_deliveries.ping, hook.id)


def over(database: Database, hook: WebhookRecord) -> WebhookRecord | None:
    """A webhook, once none of its deliveries is pending."""
    return None if pending_deliveries(database, hook) else webhook_now(database, hook)


def attempted(database: Database, hook: WebhookRecord) -> WebhookRecord | None:
    """A webhook, once a delivery was attempted."""
    now = webhook_now(database, hook)
    return None if now.last_id is None else now


def test_a_life_of_an_experiment_arrives_signed_each_change_once(
    database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    hook, secret = listen(database, f"{receiver.url}/ok")
    submit(database)
    finish(database, claim(database))
    kinds, ids = pending_kinds(database, hook), [row.id for row in pending_deliveries(database, hook)]
    with dispatch_webhooks(database, settings(tmp_path)):
        now = eventually(lambda: over(database, hook), LIMIT_S)
    verified = [Webhook(secret).verify(request.body, request.headers) for request in receiver.received]
    assert [event["type"] for event in verified] == kinds
    assert len(verified) == 6
    assert [request.headers["webhook-id"] for request in receiver.received] == ids
    assert {request.headers["content-type"] for request in receiver.received} == {"application/json"}
    assert (now.last_id, now.last_status) == (ids[-1], DeliveryStatus.DELIVERED)


def test_failed_delivery_arrives_later_under_the_same_id(
    database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    hook, _ = listen(database, f"{receiver.url}/500")
    ping(database, hook)
    with dispatch_webhooks(database, settings(tmp_path)):
        failing = eventually(lambda: attempted(database, hook), LIMIT_S)
        assert (failing.last_status, failing.last_error) == (DeliveryStatus.PENDING, "the answer was 500")
        write(database, lambda session: webhooks.edit(session, hook.id, url=f"{receiver.url}/ok"))
        write(database, lambda session: session.execute(update(DeliveryRecord).values(due_at=sql_now())))
        now = eventually(lambda: over(database, hook), LIMIT_S)
    assert (now.last_id, now.last_status) == (failing.last_id, DeliveryStatus.DELIVERED)
    assert [request.path for request in receiver.received] == ["/500", "/ok"]
    assert [request.headers["webhook-id"] for request in receiver.received] == [now.last_id] * 2


def test_a_receiver_that_hangs_holds_up_nobody_else(
    database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    hanging = [listen(database, f"{receiver.url}/hang", "ann")[0] for _ in range(OF_ONE_OWNER + 1)]
    other, _ = listen(database, f"{receiver.url}/ok", "bob")
    with dispatch_webhooks(database, settings(tmp_path)):
        for hook in hanging:
            ping(database, hook)
        eventually(lambda: len(receiver.received) == OF_ONE_OWNER, LIMIT_S)
        ping(database, other)
        eventually(lambda: over(database, other), LIMIT_S)
        assert [request.path for request in receiver.received].count("/hang") == OF_ONE_OWNER
        receiver.released.set()
    outcomes = [now.last_error for hook in hanging if (now := attempted(database, hook))]
    assert len(outcomes) >= OF_ONE_OWNER
    assert all(outcomes)


def test_receiver_that_answers_it_is_gone_is_not_asked_again(
    database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    hook, _ = listen(database, f"{receiver.url}/410")
    ping(database, hook)
    with dispatch_webhooks(database, settings(tmp_path)):
        eventually(lambda: over(database, hook), LIMIT_S)
    assert webhook_now(database, hook).disabled_reason == "it answered 410 Gone"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_by_default_this_machine_is_not_reached_and_the_log_names_the_setting_but_no_url(
    database: Database, receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, secret = listen(database, f"{receiver.url}/ok?token=hunter2")
    ping(database, hook)
    with dispatch_webhooks(database, settings(tmp_path, webhook_networks=())):
        error = str(eventually(lambda: attempted(database, hook), LIMIT_S).last_error)
    assert "127.0.0.1 (loopback); the operator allows networks by FEDQ_WEBHOOK_NETWORKS" in error
    assert receiver.received == []
    printed = "".join(capsys.readouterr())
    assert "hunter2" not in printed + error
    assert secret not in printed


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_reconciler_sends_and_reconciles_while_a_receiver_hangs(
    database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    hook, _ = listen(database, f"{receiver.url}/hang")
    ping(database, hook)
    ended = Event()
    configured = settings(tmp_path, broker_url=f"redis+socket://{tmp_path}/nobody.sock")
    with ThreadPoolExecutor(1) as beside:
        watching = beside.submit(run_forever, database, configured, ended)
        try:
            eventually(lambda: receiver.received, LIMIT_S)
            experiment = submit(database)
            claim(database, lease_s=-1.0)
            eventually(lambda: run_of(database, experiment).status is Status.QUEUED, LIMIT_S)
        finally:
            ended.set()
            receiver.released.set()
        watching.result()
    assert attempted(database, hook)
