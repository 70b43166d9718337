"""Webhook deliveries: claimed by dispatchers, and deleted once they have arrived or are given up.

A dispatcher leases a delivery. One that has not reported when its lease expires has lost it, and
another sends it again. So each is sent at least once, always under the same id. The webhook keeps
the state of the delivery that was attempted last.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, undefer

from fedcore.errors import StateConflictError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import audit, counters, webhook_outbox, webhooks
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import DELIVERIES, Lease
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedcore.platform.webhooks.protocol import DISABLED_AFTER_S, GONE, ReceiverResponse, pause_s

SENDER = "sender"


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery as its dispatcher holds it."""

    id: str
    webhook_id: str
    owner: str
    url: str = field(repr=False)
    body: str = field(repr=False)
    secret: str = field(repr=False)
    created_at: datetime
    moment: datetime
    """When it was claimed, by the database's clock."""
    fence: int
    failures: int

    @property
    def lease(self) -> Lease:
        """The part that the outcome names."""
        return Lease(self.id, self.fence)


class Backlog(NamedTuple):
    """Deliveries to be sent, or to be sent again."""

    deliveries: int
    longest_s: float
    """Age of the oldest."""


def claim_due(
    session: Session, lease_s: float, *, besides: Collection[str] = (), not_of: Collection[str] = ()
) -> ClaimedDelivery | None:
    """Claim the delivery that has been due longest, for `lease_s` seconds: of no webhook in
    `besides` and no owner in `not_of`.
    """
    query = (
        select(DeliveryRecord.id)
        .join(WebhookRecord, WebhookRecord.id == DeliveryRecord.webhook_id)
        .where(DeliveryRecord.webhook_id.not_in(besides), WebhookRecord.owner.not_in(not_of))
        .order_by(DeliveryRecord.due_at, DeliveryRecord.id)
        .limit(1)
    )
    delivery_id = session.scalar(DELIVERIES.lock_free(query))
    if delivery_id is None:
        return None
    DELIVERIES.claim(session, delivery_id, lease_s)
    return _claimed(session, delivery_id)


def any_due(session: Session) -> bool:
    """True if a delivery is due."""
    return session.scalar(select(DeliveryRecord.id).where(*DELIVERIES.free()).limit(1)) is not None


def record_attempt(
    session: Session, claimed: ClaimedDelivery, response: ReceiverResponse, chance: float
) -> DeliveryStatus | None:
    """Record the outcome of an attempt, and schedule the next one or delete the delivery.

    `chance` in [0, 1) is the jitter of the next attempt.

    Returns the status of the delivery; None when it is no longer this dispatcher's. A webhook whose
    receiver is gone, or has failed for days, is disabled.
    """
    # The webhook first, then its deliveries: the order in which deleting and disabling lock them.
    hook = select(WebhookRecord.failing_since, sql_now()).where(WebhookRecord.id == claimed.webhook_id)
    row = session.execute(hook.with_for_update(key_share=True)).first()
    if row is None or DELIVERIES.lock(session, claimed.lease, DeliveryRecord.id) is None:
        return None
    failing_since, moment = row
    failed = response.error is not None
    over = not failed or response.code == GONE
    pause = None if over else pause_s(claimed.failures + 1, chance, response.retry_after_s)
    if pause is None:
        status = DeliveryStatus.FAILED if failed else DeliveryStatus.DELIVERED
        next_attempt_at = None
        session.execute(delete(DeliveryRecord).where(DeliveryRecord.id == claimed.id))
    else:
        status = DeliveryStatus.PENDING
        next_attempt_at = moment + timedelta(seconds=pause)
        DELIVERIES.update(session, claimed.lease, failures=claimed.failures + 1, due_at=next_attempt_at)
    failing_since = (failing_since or moment) if failed else None
    webhooks.edit(
        session,
        claimed.webhook_id,
        failing_since=failing_since,
        last_id=claimed.id,
        last_status=status,
        last_attempt_at=claimed.moment,
        last_error=response.error,
        next_attempt_at=next_attempt_at,
    )
    counts = {counters.UNDELIVERED if failed else counters.DELIVERED: 1}
    counters.add(
        session, SENDER, counts | ({counters.GIVEN_UP: 1} if status is DeliveryStatus.FAILED else {})
    )
    # The last failure of a webhook with few events may be long ago: a new delivery is first tried
    # for its day.
    tried = status is DeliveryStatus.FAILED or claimed.moment - claimed.created_at >= timedelta(days=1)
    failing_s = (moment - failing_since).total_seconds() if failing_since and tried else 0.0
    reason = _hopeless(response, failing_s)
    if reason:
        webhooks.disable(session, claimed.webhook_id, reason)
        audit.record(
            session, audit.AuditFacts("disable a webhook", 200, claimed.owner, "", SENDER), claimed.webhook_id
        )
    return status


def ping(session: Session, webhook_id: str) -> DeliveryRecord:
    """Send a test message.

    Raises ResourceNotFoundError, and StateConflictError where the webhook is disabled.
    """
    record = webhooks.find(session, webhook_id)
    if record.disabled_at is not None:
        raise StateConflictError(
            f"webhook {webhook_id} is disabled ({record.disabled_reason}): enable it first"
        )
    return session.get_one(DeliveryRecord, webhook_outbox.ping(session, webhook_id))


def backlog(session: Session) -> Backlog:
    """Count the deliveries to be sent, or to be sent again."""
    count, first, moment = session.execute(
        select(func.count(), func.min(DeliveryRecord.created_at), sql_now())
    ).one()
    return Backlog(count, max(0.0, (moment - first).total_seconds()) if count else 0.0)


def _claimed(session: Session, delivery_id: str) -> ClaimedDelivery:
    query = select(DeliveryRecord, WebhookRecord, sql_now()).options(undefer(WebhookRecord.secret))
    of_this = query.join(WebhookRecord, WebhookRecord.id == DeliveryRecord.webhook_id).where(
        DeliveryRecord.id == delivery_id
    )
    delivery, hook, moment = session.execute(of_this).one()
    return ClaimedDelivery(
        id=delivery.id,
        webhook_id=hook.id,
        owner=hook.owner,
        url=hook.url,
        body=delivery.body,
        secret=hook.secret,
        created_at=delivery.created_at,
        moment=moment,
        fence=delivery.fence,
        failures=delivery.failures,
    )


def _hopeless(response: ReceiverResponse, failing_s: float) -> str | None:
    """Reason for disabling the webhook, if there is one."""
    if response.code == GONE:
        return "it answered 410 Gone"
    if failing_s >= DISABLED_AFTER_S:
        return f"nothing was delivered for {DISABLED_AFTER_S / 86_400:.0f} days, at last: {response.error}"
    return None
