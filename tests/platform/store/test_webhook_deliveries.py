"""Deliveries: each is sent until it arrives or there is no hope, by one sender at a time, always
under the same id.
"""

from typing import Any

import pytest
from sqlalchemy import update

from fedcore.errors import StateConflictError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import Database, audit, counters, webhook_deliveries, webhooks
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedcore.platform.store.webhook_deliveries import ClaimedDelivery
from fedcore.platform.webhooks.protocol import DISABLED_AFTER_S, RETRIES, ReceiverResponse, pause_s
from tests.builders.transactions import read, write
from tests.builders.webhooks import BAD, GOOD, claim_delivery, create_webhook, pending_deliveries, webhook_now

GONE = ReceiverResponse(410, "the answer was 410")


@pytest.fixture
def hook(database: Database) -> WebhookRecord:
    """A webhook that is to be told one thing."""
    made = create_webhook(database)
    write(database, webhook_deliveries.ping, made.id)
    return made


def conclude(database: Database, claimed: ClaimedDelivery, answer: ReceiverResponse) -> DeliveryStatus | None:
    return write(database, webhook_deliveries.record_attempt, claimed, answer, 0.5)


def the_one(database: Database, hook: WebhookRecord) -> DeliveryRecord:
    (delivery,) = pending_deliveries(database, hook)
    return delivery


def last_of(database: Database, hook: WebhookRecord) -> tuple[Any, ...]:
    """Id, status, error and next attempt of the delivery that was attempted last."""
    now = webhook_now(database, hook)
    return now.last_id, now.last_status, now.last_error, now.next_attempt_at


def let_pass(database: Database, **columns: Any) -> None:
    """As if the time had come."""
    write(
        database,
        lambda session: session.execute(update(DeliveryRecord).values({"due_at": sql_now(-1.0), **columns})),
    )


def test_delivery_that_arrives_is_over(database: Database, hook: WebhookRecord) -> None:
    claimed = claim_delivery(database)
    assert conclude(database, claimed, GOOD) is DeliveryStatus.DELIVERED
    assert pending_deliveries(database, hook) == []
    assert not read(database, webhook_deliveries.any_due)
    now = webhook_now(database, hook)
    assert (now.last_id, now.last_status, now.last_attempt_at, now.last_error, now.next_attempt_at) == (
        claimed.id,
        DeliveryStatus.DELIVERED,
        claimed.moment,
        None,
        None,
    )


def test_failed_delivery_is_tried_again_as_the_schedule_says_and_then_given_up(
    database: Database, hook: WebhookRecord
) -> None:
    for failures in range(1, RETRIES + 1):
        claimed = claim_delivery(database)
        assert conclude(database, claimed, BAD) is DeliveryStatus.PENDING
        delivery = the_one(database, hook)
        pause = pause_s(failures, 0.5)
        assert pause is not None
        assert (delivery.id, delivery.failures) == (claimed.id, failures)
        assert abs((delivery.due_at - claimed.moment).total_seconds() - pause) < 30
        assert write(database, webhook_deliveries.claim_due, 60.0) is None
        let_pass(database)
    assert conclude(database, claim_delivery(database), BAD) is DeliveryStatus.FAILED
    assert pending_deliveries(database, hook) == []
    assert webhook_now(database, hook).disabled_at is None
    totals = read(database, counters.totals)
    assert (totals[counters.UNDELIVERED], totals[counters.GIVEN_UP]) == (RETRIES + 1, 1)


def test_a_sender_that_is_not_heard_of_has_lost_it_and_what_it_says_later_is_refused(
    database: Database, hook: WebhookRecord
) -> None:
    lost = claim_delivery(database, lease_s=-1.0)
    again = claim_delivery(database)
    assert (again.id, again.body) == (lost.id, lost.body)
    assert conclude(database, lost, BAD) is None
    assert conclude(database, again, GOOD) is DeliveryStatus.DELIVERED
    assert last_of(database, hook)[:2] == (again.id, DeliveryStatus.DELIVERED)


def test_delivery_that_one_sender_holds_is_taken_by_no_other(database: Database, hook: WebhookRecord) -> None:
    claim_delivery(database)
    assert write(database, webhook_deliveries.claim_due, 60.0) is None


def test_senders_pass_over_whom_they_are_busy_with(database: Database) -> None:
    anns = [create_webhook(database, owner="ann") for _ in range(2)]
    bobs = create_webhook(database, owner="bob")
    for hook in (*anns, bobs):
        write(database, webhook_deliveries.ping, hook.id)
    assert claim_delivery(database, lease_s=-1.0).webhook_id == anns[0].id
    let_pass(database)
    assert claim_delivery(database, lease_s=-1.0, besides=[anns[0].id]).webhook_id == anns[1].id
    assert claim_delivery(database, not_of=["ann"]).webhook_id == bobs.id
    assert write(database, webhook_deliveries.claim_due, 60.0, besides=[bobs.id], not_of=["ann"]) is None


def test_receiver_that_is_gone_is_told_nothing_more_and_that_is_in_the_audit_log(
    database: Database, hook: WebhookRecord
) -> None:
    write(database, webhook_deliveries.ping, hook.id)
    assert conclude(database, claim_delivery(database), GONE) is DeliveryStatus.FAILED
    assert pending_deliveries(database, hook) == []
    assert webhook_now(database, hook).disabled_reason == "it answered 410 Gone"
    (entry,) = read(database, audit.page, target=hook.id).items
    assert (entry.action, entry.owner) == ("disable a webhook", "local")


@pytest.mark.parametrize("columns", [{"failures": RETRIES}, {"created_at": sql_now(-86_401.0)}])
def test_receiver_that_failed_for_days_is_disabled_once_something_was_tried_for_its_day(
    database: Database, hook: WebhookRecord, columns: dict[str, Any]
) -> None:
    conclude(database, claim_delivery(database), BAD)
    long_ago = update(WebhookRecord).values(failing_since=sql_now(-DISABLED_AFTER_S))
    write(database, lambda session: session.execute(long_ago))
    let_pass(database)
    conclude(database, claim_delivery(database), BAD)
    assert webhook_now(database, hook).disabled_at is None
    let_pass(database, **columns)
    conclude(database, claim_delivery(database), BAD)
    assert str(webhook_now(database, hook).disabled_reason).startswith(
        "nothing was delivered for 3 days, at last: the answer was 500"
    )
    assert pending_deliveries(database, hook) == []
    assert last_of(database, hook)[1:] == (DeliveryStatus.FAILED, "the answer was 500", None)


def test_success_clears_the_failures_of_a_receiver(database: Database, hook: WebhookRecord) -> None:
    conclude(database, claim_delivery(database), BAD)
    since = webhook_now(database, hook).failing_since
    let_pass(database)
    conclude(database, claim_delivery(database), BAD)
    assert since == webhook_now(database, hook).failing_since is not None
    let_pass(database)
    conclude(database, claim_delivery(database), GOOD)
    assert webhook_now(database, hook).failing_since is None


def test_the_webhook_keeps_the_state_of_the_delivery_that_was_attempted_last(
    database: Database, hook: WebhookRecord
) -> None:
    assert last_of(database, hook) == (None, None, None, None)
    first = claim_delivery(database)
    assert last_of(database, hook) == (None, None, None, None)
    conclude(database, first, BAD)
    next_attempt_at = the_one(database, hook).due_at
    assert last_of(database, hook) == (
        first.id,
        DeliveryStatus.PENDING,
        "the answer was 500",
        next_attempt_at,
    )
    second = write(database, webhook_deliveries.ping, hook.id).id
    conclude(database, claim_delivery(database), GOOD)
    assert last_of(database, hook) == (second, DeliveryStatus.DELIVERED, None, None)
    let_pass(database, failures=RETRIES)
    again = claim_delivery(database)
    conclude(database, again, BAD)
    assert last_of(database, hook) == (first.id, DeliveryStatus.FAILED, "the answer was 500", None)
    assert webhook_now(database, hook).last_attempt_at == again.moment


def test_a_delivery_that_was_lost_changes_no_state_of_the_webhook(
    database: Database, hook: WebhookRecord
) -> None:
    lost = claim_delivery(database, lease_s=-1.0)
    claim_delivery(database)
    conclude(database, lost, BAD)
    assert last_of(database, hook) == (None, None, None, None)
    assert webhook_now(database, hook).failing_since is None


def test_the_last_delivery_of_a_disabled_webhook_has_no_next_attempt(
    database: Database, hook: WebhookRecord
) -> None:
    held = claim_delivery(database)
    conclude(database, held, BAD)
    write(database, webhooks.disable, hook.id, "by hand")
    assert last_of(database, hook) == (held.id, DeliveryStatus.FAILED, "the answer was 500", None)
    assert read(database, counters.totals)[counters.GIVEN_UP] == 1
    write(database, webhooks.enable, hook.id)
    write(database, webhook_deliveries.ping, hook.id)
    conclude(database, claim_delivery(database), GOOD)
    write(database, webhooks.disable, hook.id, "by hand")
    assert last_of(database, hook)[1] is DeliveryStatus.DELIVERED


def test_deliveries_are_sent_in_the_order_of_their_creation_but_for_those_that_failed(
    database: Database, hook: WebhookRecord
) -> None:
    first = the_one(database, hook).id
    second, third = (write(database, webhook_deliveries.ping, hook.id).id for _ in range(2))
    assert first < second < third
    conclude(database, claim_delivery(database), BAD)
    order = []
    for _ in range(2):
        claimed = claim_delivery(database)
        order.append(claimed.id)
        conclude(database, claimed, GOOD)
    assert order == [second, third]
    assert [row.id for row in pending_deliveries(database, hook)] == [first]


def test_a_disabled_webhook_is_not_pinged(database: Database, hook: WebhookRecord) -> None:
    write(database, webhooks.disable, hook.id, "by hand")
    with pytest.raises(StateConflictError, match=r"disabled \(by hand\): enable it first"):
        write(database, webhook_deliveries.ping, hook.id)


def test_the_backlog_is_what_waits(database: Database, hook: WebhookRecord) -> None:
    let_pass(database, created_at=sql_now(-100.0))
    backlog = read(database, webhook_deliveries.backlog)
    assert (backlog.deliveries, 100 <= backlog.longest_s < 200) == (1, True)
    conclude(database, claim_delivery(database), GOOD)
    assert read(database, webhook_deliveries.backlog) == (0, 0.0)
