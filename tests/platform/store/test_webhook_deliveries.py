"""Deliveries: each is sent until it arrives or there is no hope, by one sender at a time, always
under the same id.
"""

from typing import Any

import pytest
from sqlalchemy import update

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import Database, audit, counters, webhook_deliveries, webhooks
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedcore.platform.store.webhook_deliveries import ClaimedDelivery
from fedcore.platform.webhooks.protocol import DISABLED_AFTER_S, RETRIES, ReceiverResponse, pause_s
from tests.platform.store.acts import read, write
from tests.platform.store.hooks import BAD, GOOD, hook_now, listen, take, told

GONE = ReceiverResponse(0.1, 410, "", "the answer was 410")


@pytest.fixture
def hook(database: Database) -> WebhookRecord:
    """A webhook that is to be told one thing."""
    made = listen(database)
    write(database, webhook_deliveries.ping, made.id)
    return made


def conclude(database: Database, claimed: ClaimedDelivery, answer: ReceiverResponse) -> DeliveryStatus | None:
    return write(database, webhook_deliveries.record_attempt, claimed, answer, 0.5)


def the_one(database: Database, hook: WebhookRecord) -> DeliveryRecord:
    (delivery,) = told(database, hook)
    return delivery


def let_pass(database: Database, **columns: Any) -> None:
    """As if the time had come."""
    write(
        database,
        lambda session: session.execute(update(DeliveryRecord).values({"due_at": sql_now(-1.0), **columns})),
    )


def test_what_arrives_is_over(database: Database, hook: WebhookRecord) -> None:
    claimed = take(database)
    assert conclude(database, claimed, GOOD) is DeliveryStatus.DELIVERED
    delivery = the_one(database, hook)
    assert (delivery.id, delivery.status, delivery.finished_at is None) == (
        claimed.id,
        DeliveryStatus.DELIVERED,
        False,
    )
    (attempt,) = delivery.attempts
    assert attempt == {
        "at": claimed.moment.isoformat(),
        "seconds": 0.1,
        "code": 200,
        "answer": "thanks",
        "error": None,
    }
    assert not read(database, webhook_deliveries.any_due)


def test_what_fails_is_tried_again_as_the_schedule_says_and_then_given_up(
    database: Database, hook: WebhookRecord
) -> None:
    for failures in range(1, RETRIES + 1):
        claimed = take(database)
        assert conclude(database, claimed, BAD) is DeliveryStatus.PENDING
        delivery = the_one(database, hook)
        pause = pause_s(failures, 0.5)
        assert pause is not None
        assert (delivery.id, delivery.failures) == (claimed.id, failures)
        assert abs((delivery.due_at - claimed.moment).total_seconds() - pause) < 30
        assert write(database, webhook_deliveries.claim_due, 60.0) is None
        let_pass(database)
    assert conclude(database, take(database), BAD) is DeliveryStatus.FAILED
    assert len(the_one(database, hook).attempts) == RETRIES + 1
    assert hook_now(database, hook).disabled_at is None
    totals = read(database, counters.totals)
    assert (totals[counters.UNDELIVERED], totals[counters.GIVEN_UP]) == (RETRIES + 1, 1)


def test_a_sender_that_is_not_heard_of_has_lost_it_and_what_it_says_later_is_refused(
    database: Database, hook: WebhookRecord
) -> None:
    lost = take(database, lease_s=-1.0)
    again = take(database)
    assert (again.id, again.body) == (lost.id, lost.body)
    assert conclude(database, lost, BAD) is None
    assert conclude(database, again, GOOD) is DeliveryStatus.DELIVERED
    assert len(the_one(database, hook).attempts) == 1


def test_what_one_sender_holds_no_other_takes(database: Database, hook: WebhookRecord) -> None:
    take(database)
    assert write(database, webhook_deliveries.claim_due, 60.0) is None


def test_senders_pass_over_whom_they_are_busy_with(database: Database) -> None:
    anns = [listen(database, owner="ann") for _ in range(2)]
    bobs = listen(database, owner="bob")
    for hook in (*anns, bobs):
        write(database, webhook_deliveries.ping, hook.id)
    assert take(database, lease_s=-1.0).webhook_id == anns[0].id
    let_pass(database)
    assert take(database, lease_s=-1.0, besides=[anns[0].id]).webhook_id == anns[1].id
    assert take(database, not_of=["ann"]).webhook_id == bobs.id
    assert write(database, webhook_deliveries.claim_due, 60.0, besides=[bobs.id], not_of=["ann"]) is None


def test_who_is_gone_is_told_nothing_more_and_that_is_in_the_audit_log(
    database: Database, hook: WebhookRecord
) -> None:
    write(database, webhook_deliveries.ping, hook.id)
    assert conclude(database, take(database), GONE) is DeliveryStatus.FAILED
    assert {row.status for row in told(database, hook)} == {DeliveryStatus.FAILED}
    assert hook_now(database, hook).disabled_reason == "it answered 410 Gone"
    (entry,) = read(database, audit.page, target=hook.id).items
    assert (entry.action, entry.owner) == ("disable a webhook", "local")


@pytest.mark.parametrize("columns", [{"failures": RETRIES}, {"created_at": sql_now(-86_401.0)}])
def test_who_has_failed_for_days_is_disabled_once_something_was_tried_for_its_day(
    database: Database, hook: WebhookRecord, columns: dict[str, Any]
) -> None:
    conclude(database, take(database), BAD)
    long_ago = update(WebhookRecord).values(failing_since=sql_now(-DISABLED_AFTER_S))
    write(database, lambda session: session.execute(long_ago))
    let_pass(database)
    conclude(database, take(database), BAD)
    assert hook_now(database, hook).disabled_at is None
    let_pass(database, **columns)
    conclude(database, take(database), BAD)
    assert str(hook_now(database, hook).disabled_reason).startswith(
        "nothing was delivered for 3 days, at last: the answer was 500"
    )
    assert the_one(database, hook).status is DeliveryStatus.FAILED


def test_one_success_and_nothing_is_held_against_it(database: Database, hook: WebhookRecord) -> None:
    conclude(database, take(database), BAD)
    since = hook_now(database, hook).failing_since
    let_pass(database)
    conclude(database, take(database), BAD)
    assert since == hook_now(database, hook).failing_since is not None
    let_pass(database)
    conclude(database, take(database), GOOD)
    assert hook_now(database, hook).failing_since is None


def test_what_is_asked_for_again_is_sent_again_under_the_same_id(
    database: Database, hook: WebhookRecord
) -> None:
    first = take(database)
    conclude(database, first, GOOD)
    write(database, webhook_deliveries.redeliver, hook.id, first.id)
    again = take(database)
    assert (again.id, again.body, again.failures) == (first.id, first.body, 0)
    conclude(database, again, BAD)
    assert [attempt["code"] for attempt in the_one(database, hook).attempts] == [200, 500]


def test_a_disabled_webhook_is_neither_pinged_nor_told_again(database: Database, hook: WebhookRecord) -> None:
    delivery = the_one(database, hook)
    write(database, webhooks.disable, hook.id, "by hand")
    with pytest.raises(StateConflictError, match=r"disabled \(by hand\)"):
        write(database, webhook_deliveries.ping, hook.id)
    with pytest.raises(StateConflictError, match="enable it first"):
        write(database, webhook_deliveries.redeliver, hook.id, delivery.id)


def test_a_delivery_belongs_to_its_webhook(database: Database, hook: WebhookRecord) -> None:
    delivery, other = the_one(database, hook), listen(database)
    assert read(database, webhook_deliveries.find, hook.id, delivery.id).id == delivery.id
    for act in (webhook_deliveries.find, webhook_deliveries.redeliver):
        with pytest.raises(ResourceNotFoundError):
            write(database, act, other.id, delivery.id)


def test_they_are_listed_by_status_newest_first(database: Database, hook: WebhookRecord) -> None:
    conclude(database, take(database), GOOD)
    second = write(database, webhook_deliveries.ping, hook.id).id
    listed = read(database, webhook_deliveries.page, hook.id, limit=1)
    assert [row.id for row in listed.items] == [second]
    assert (
        read(database, webhook_deliveries.page, hook.id, cursor=listed.next).items[0].status
        is DeliveryStatus.DELIVERED
    )
    assert [
        row.id
        for row in read(database, webhook_deliveries.page, hook.id, status=DeliveryStatus.PENDING).items
    ] == [second]


def test_what_is_over_is_forgotten_after_a_while_and_what_waits_is_not(
    database: Database, hook: WebhookRecord
) -> None:
    conclude(database, take(database), GOOD)
    waiting = write(database, webhook_deliveries.ping, hook.id).id
    for kept_s in (60.0, 36_500 * 86_400.0):
        assert write(database, webhook_deliveries.prune, kept_s) == 0
    assert write(database, webhook_deliveries.prune, -60.0) == 1
    assert [row.id for row in told(database, hook)] == [waiting]


def test_the_backlog_is_what_waits(database: Database, hook: WebhookRecord) -> None:
    let_pass(database, created_at=sql_now(-100.0))
    backlog = read(database, webhook_deliveries.backlog)
    assert (backlog.deliveries, 100 <= backlog.longest_s < 200) == (1, True)
    conclude(database, take(database), GOOD)
    assert read(database, webhook_deliveries.backlog) == (0, 0.0)
