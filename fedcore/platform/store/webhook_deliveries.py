"""Webhook deliveries: claimed by dispatchers, recorded, repeated on request, listed and pruned.

A dispatcher leases a delivery. One that has not reported when its lease expires has lost it, and
another sends it again. So each is sent at least once, always under the same id.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, undefer

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import audit, counters, webhook_outbox, webhooks
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import DELIVERIES, Lease
from fedcore.platform.store.records import RecordPage, floor, newest
from fedcore.platform.store.tables import DeliveryRecord, Document, WebhookRecord
from fedcore.platform.webhooks.protocol import DISABLED_AFTER_S, GONE, ReceiverResponse, pause_s

SENDER = "sender"
MOST_ATTEMPTS = 30
"""Latest attempts that a delivery keeps."""
_PRUNED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery as its dispatcher holds it."""

    id: str
    webhook_id: str
    owner: str
    kind: str
    url: str = field(repr=False)
    body: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
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
    """Record the outcome of an attempt, and schedule the next one.

    `chance` in [0, 1) is its jitter.

    Returns the status of the delivery; None when it is no longer this dispatcher's. A webhook whose
    receiver is gone, or has failed for days, is disabled.
    """
    # The webhook first, then its deliveries: the order in which deleting and disabling lock them.
    failing_s = _note_health(session, claimed, response)
    over = response.error is None or response.code == GONE
    pause = None if over else pause_s(claimed.failures + 1, chance, response.retry_after_s)
    status = (
        DeliveryStatus.DELIVERED
        if response.error is None
        else DeliveryStatus.FAILED
        if pause is None
        else DeliveryStatus.PENDING
    )
    if not _write(session, claimed, response, status, pause):
        return None
    counts = {counters.DELIVERED if response.error is None else counters.UNDELIVERED: 1}
    counters.add(
        session, SENDER, counts | ({counters.GIVEN_UP: 1} if status is DeliveryStatus.FAILED else {})
    )
    # The last failure of a webhook with few events may be long ago: a new delivery is first tried
    # for its day.
    tried = status is DeliveryStatus.FAILED or claimed.moment - claimed.created_at >= timedelta(days=1)
    reason = _hopeless(response, failing_s if tried else 0.0)
    if reason:
        webhooks.disable(session, claimed.webhook_id, reason)
        audit.record(
            session, audit.AuditFacts("disable a webhook", 200, claimed.owner, "", SENDER), claimed.webhook_id
        )
    return status


def find(session: Session, webhook_id: str, delivery_id: str) -> DeliveryRecord:
    """A delivery of a webhook; raises ResourceNotFoundError."""
    record = session.get(DeliveryRecord, delivery_id)
    if record is None or record.webhook_id != webhook_id:
        raise ResourceNotFoundError(f"there is no delivery {delivery_id!r} of this webhook")
    return record


def page(
    session: Session,
    webhook_id: str,
    *,
    status: DeliveryStatus | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> RecordPage[DeliveryRecord]:
    """Deliveries of a webhook, newest first."""
    query = select(DeliveryRecord).where(DeliveryRecord.webhook_id == webhook_id)
    return newest(
        session,
        query if status is None else query.where(DeliveryRecord.status == status),
        DeliveryRecord.id,
        limit,
        cursor,
    )


def redeliver(session: Session, webhook_id: str, delivery_id: str) -> DeliveryRecord:
    """Send it again, now, under the same id.

    Raises ResourceNotFoundError, and StateConflictError where the webhook is disabled.
    """
    find(session, webhook_id, delivery_id)
    _refuse_disabled(session, webhook_id)
    again = {"status": DeliveryStatus.PENDING, "due_at": sql_now(), "failures": 0, "finished_at": None}
    session.execute(update(DeliveryRecord).where(DeliveryRecord.id == delivery_id).values(again))
    return find(session, webhook_id, delivery_id)


def ping(session: Session, webhook_id: str) -> DeliveryRecord:
    """Send a test message.

    Raises ResourceNotFoundError, and StateConflictError where the webhook is disabled.
    """
    _refuse_disabled(session, webhook_id)
    return find(session, webhook_id, webhook_outbox.ping(session, webhook_id))


def prune(session: Session, older_than_s: float) -> int:
    """Delete ended deliveries that are older than `older_than_s` seconds, some thousands at a time.

    Returns how many.
    """
    moment = session.scalars(select(sql_now(-older_than_s))).one()
    old = DeliveryRecord.id < floor("msg", moment), DeliveryRecord.status != DeliveryStatus.PENDING
    chosen = select(DeliveryRecord.id).where(*old).order_by(DeliveryRecord.id).limit(_PRUNED_AT_ONCE)
    return len(
        session.scalars(
            delete(DeliveryRecord).where(DeliveryRecord.id.in_(chosen)).returning(DeliveryRecord.id)
        ).all()
    )


def backlog(session: Session) -> Backlog:
    """Count the deliveries to be sent, or to be sent again."""
    waiting = DeliveryRecord.status == DeliveryStatus.PENDING
    count, first = session.execute(
        select(func.count(), func.min(DeliveryRecord.created_at)).where(waiting)
    ).one()
    moment = session.scalars(select(sql_now())).one()
    return Backlog(count, max(0.0, (moment - first).total_seconds()) if count else 0.0)


def _claimed(session: Session, delivery_id: str) -> ClaimedDelivery:
    secrets = undefer(WebhookRecord.secret), undefer(WebhookRecord.previous_secret)
    both = select(DeliveryRecord, WebhookRecord, sql_now(), WebhookRecord.previous_until > sql_now()).options(
        *secrets
    )
    of_this = both.join(WebhookRecord, WebhookRecord.id == DeliveryRecord.webhook_id).where(
        DeliveryRecord.id == delivery_id
    )
    delivery, hook, moment, overlaps = session.execute(of_this).one()
    return ClaimedDelivery(
        id=delivery.id,
        webhook_id=hook.id,
        owner=hook.owner,
        kind=delivery.kind,
        url=hook.url,
        body=delivery.body,
        secrets=(hook.secret, hook.previous_secret) if overlaps and hook.previous_secret else (hook.secret,),
        created_at=delivery.created_at,
        moment=moment,
        fence=delivery.fence,
        failures=delivery.failures,
    )


def _note_health(session: Session, claimed: ClaimedDelivery, response: ReceiverResponse) -> float:
    """Update the health of the webhook; return for how many seconds all attempts have failed."""
    hook, since = WebhookRecord.id == claimed.webhook_id, WebhookRecord.failing_since
    if response.error is None:
        session.execute(update(WebhookRecord).where(hook, since.is_not(None)).values(failing_since=None))
        return 0.0
    row = session.execute(select(since, sql_now()).where(hook).with_for_update(key_share=True)).first()
    if row is None:
        return 0.0
    if row[0] is None:
        session.execute(update(WebhookRecord).where(hook).values(failing_since=sql_now()))
    return 0.0 if row[0] is None else (row[1] - row[0]).total_seconds()


def _write(
    session: Session,
    claimed: ClaimedDelivery,
    response: ReceiverResponse,
    status: DeliveryStatus,
    pause: float | None,
) -> bool:
    """Write the outcome and return True, unless the delivery is no longer this dispatcher's."""
    row = DELIVERIES.lock(session, claimed.lease, DeliveryRecord.attempts)
    if row is None:
        return False
    DELIVERIES.update(
        session,
        claimed.lease,
        status=status,
        attempts=[*row.attempts, _attempt(claimed, response)][-MOST_ATTEMPTS:],
        failures=claimed.failures + (response.error is not None),
        due_at=sql_now(pause or 0.0),
        finished_at=None if status is DeliveryStatus.PENDING else sql_now(),
    )
    return True


def _attempt(claimed: ClaimedDelivery, response: ReceiverResponse) -> Document:
    return {
        "at": claimed.moment.isoformat(),
        "seconds": round(response.seconds, 3),
        "code": response.code,
        "answer": response.body,
        "error": response.error,
    }


def _hopeless(response: ReceiverResponse, failing_s: float) -> str | None:
    """Reason for disabling the webhook, if there is one."""
    if response.code == GONE:
        return "it answered 410 Gone"
    if failing_s >= DISABLED_AFTER_S:
        return f"nothing was delivered for {DISABLED_AFTER_S / 86_400:.0f} days, at last: {response.error}"
    return None


def _refuse_disabled(session: Session, webhook_id: str) -> None:
    record = webhooks.find(session, webhook_id)
    if record.disabled_at is not None:
        raise StateConflictError(
            f"webhook {webhook_id} is disabled ({record.disabled_reason}): enable it first"
        )
