"""`/v1/webhooks/{id}/deliveries`: what a webhook was told, and what became of it.

Sent again, and tried out.
"""

from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator

from api.http.audit_trail import Note
from api.http.authentication import Reader, Submitter
from api.http.dependencies import Cursor, Store, WebhookId, printable
from api.http.problems import responses
from api.http.routing import Router
from api.webhooks.responses import delivery_answer
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import webhook_deliveries, webhooks
from fedq.schemas import Delivery, DeliveryPage

router = Router(prefix="/v1/webhooks/{webhook_id}", tags=["webhooks"])

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of deliveries per page.")]
StatusFilter = Annotated[DeliveryStatus | None, Query(description="Return only deliveries with this status.")]
DeliveryId = Annotated[
    str,
    Path(description="Delivery id.", examples=["msg_01k9x3zq7rh2v8m4t6w0ybe5d4"]),
    AfterValidator(printable),
]


@router.post("/ping", status_code=202, responses=responses(404, 409, 422), summary="Send a test event")
def ping(principal: Submitter, webhook_id: WebhookId, database: Store, note: Note) -> Delivery:
    """Send an event `webhook.ping`, independent of the webhook's events.

    Read the delivery for its result. 409 while disabled.
    """
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        record = webhook_deliveries.ping(session, webhook_id)
        note(session, webhook_id)
    return delivery_answer(record)


@router.get("/deliveries", responses=responses(404, 422), summary="List deliveries")
def read_deliveries(
    principal: Reader,
    webhook_id: WebhookId,
    database: Store,
    status: StatusFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """Return the deliveries of a webhook, newest first.

    Finished deliveries are deleted after a retention period.
    """
    with database.reading() as session:
        webhooks.find(session, webhook_id, principal.sees)
        page = webhook_deliveries.page(session, webhook_id, status=status, limit=limit, cursor=cursor)
    return DeliveryPage(items=[delivery_answer(record) for record in page.items], next=page.next)


@router.get("/deliveries/{delivery_id}", responses=responses(404, 422), summary="Read a delivery")
def read_delivery(
    principal: Reader, webhook_id: WebhookId, delivery_id: DeliveryId, database: Store
) -> Delivery:
    """Return a delivery with its payload and attempts."""
    with database.reading() as session:
        webhooks.find(session, webhook_id, principal.sees)
        return delivery_answer(webhook_deliveries.find(session, webhook_id, delivery_id))


@router.post(
    "/deliveries/{delivery_id}/redeliver",
    status_code=202,
    responses=responses(404, 409, 422),
    summary="Redeliver",
)
def redeliver(
    principal: Submitter, webhook_id: WebhookId, delivery_id: DeliveryId, database: Store, note: Note
) -> Delivery:
    """Send a delivery again immediately, with the same id. 409 while the webhook is disabled."""
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        record = webhook_deliveries.redeliver(session, webhook_id, delivery_id)
        note(session, webhook_id)
    return delivery_answer(record)
