"""Webhooks: created, found, listed, edited, disabled and deleted.

The secret of a webhook is stored in clear, since it has to sign; it leaves the database only in the
response that shows it once, and to the dispatcher.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from fedcore.errors import QuotaError, ResourceNotFoundError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import counters
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.records import RecordPage, make_ids, read_newest
from fedcore.platform.store.tables import DeliveryRecord, KeyRecord, WebhookRecord
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from fedcore.platform.webhooks.protocol import new_secret

MOST_PER_OWNER = 20


def create(
    session: Session,
    *,
    owner: str,
    url: str,
    kinds: Sequence[EventKind] = ENDINGS,
    name: str = "",
    experiment_id: str | None = None,
    most: int = MOST_PER_OWNER,
) -> tuple[WebhookRecord, str]:
    """A new webhook, and its secret; raises QuotaError when its owner would have more than
    `most`.
    """
    moment = session.scalars(select(sql_now())).one()
    (webhook_id,) = make_ids("whk", moment, 1)
    secret = new_secret()
    record = WebhookRecord(
        id=webhook_id,
        name=name,
        owner=owner,
        url=url,
        kinds=[kind.value for kind in kinds],
        experiment_id=experiment_id,
        secret=secret,
        created_at=moment,
    )
    session.add(record)
    session.flush()
    _hold(session, owner, most)
    return find(session, webhook_id), secret


def find(session: Session, webhook_id: str, owner: str | None = None) -> WebhookRecord:
    """The webhook with this id, without its secret, if it is `owner`'s where one is given.

    Raises ResourceNotFoundError.
    """
    record = session.scalars(select(WebhookRecord).where(WebhookRecord.id == webhook_id)).first()
    if record is None or owner not in (None, record.owner):
        raise ResourceNotFoundError(f"there is no webhook {webhook_id!r}")
    return record


def page(
    session: Session, *, owner: str | None = None, limit: int = 50, cursor: str | None = None
) -> RecordPage[WebhookRecord]:
    """Webhooks, newest first: the webhooks of `owner`, or of all owners where none is given."""
    query = select(WebhookRecord)
    return read_newest(
        session,
        query if owner is None else query.where(WebhookRecord.owner == owner),
        WebhookRecord.id,
        limit,
        cursor,
    )


def edit(session: Session, webhook_id: str, **changes: Any) -> WebhookRecord:
    """Change these columns; raises ResourceNotFoundError."""
    if changes:
        session.execute(update(WebhookRecord).where(WebhookRecord.id == webhook_id).values(changes))
    return find(session, webhook_id)


def enable(session: Session, webhook_id: str) -> WebhookRecord:
    """Enable a webhook; events from before are not sent.

    Raises ResourceNotFoundError.
    """
    return edit(session, webhook_id, disabled_at=None, disabled_reason=None, failing_since=None)


def disable(session: Session, webhook_id: str, reason: str) -> WebhookRecord:
    """Disable a webhook and drop its pending deliveries; one that is disabled keeps its reason.

    Raises ResourceNotFoundError.
    """
    enabled = WebhookRecord.id == webhook_id, WebhookRecord.disabled_at.is_(None)
    session.execute(
        update(WebhookRecord).where(*enabled).values(disabled_at=sql_now(), disabled_reason=reason)
    )
    pending = WebhookRecord.id == webhook_id, WebhookRecord.last_status == DeliveryStatus.PENDING
    session.execute(
        update(WebhookRecord).where(*pending).values(last_status=DeliveryStatus.FAILED, next_attempt_at=None)
    )
    dropped = delete_from(DeliveryRecord).where(DeliveryRecord.webhook_id == webhook_id)
    count = len(session.scalars(dropped.returning(DeliveryRecord.id)).all())
    if count:
        counters.add(session, "sender", {counters.GIVEN_UP: count})
    return find(session, webhook_id)


def delete(session: Session, webhook_id: str) -> None:
    """Delete a webhook and its pending deliveries; raises ResourceNotFoundError."""
    gone = session.execute(
        delete_from(WebhookRecord).where(WebhookRecord.id == webhook_id).returning(WebhookRecord.id)
    )
    if gone.first() is None:
        raise ResourceNotFoundError(f"there is no webhook {webhook_id!r}")


def _hold(session: Session, owner: str, most: int) -> None:
    # Every owner here has a key: with the keys locked, the second of two concurrent requests
    # counts what the first created.
    session.scalars(
        select(KeyRecord.id).where(KeyRecord.owner == owner).order_by(KeyRecord.id).with_for_update()
    ).all()
    count = session.scalars(
        select(func.count()).select_from(WebhookRecord).where(WebhookRecord.owner == owner)
    ).one()
    if count > most:
        raise QuotaError(f"{owner} would have {count} webhooks, the limit is {most}; delete some")
