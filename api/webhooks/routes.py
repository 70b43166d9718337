"""`/v1/webhooks`: create, list, edit, test and delete webhooks."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.conditional import IfMatch, check_match
from api.http.dependencies import Cursor, DatabaseDep, WebhookId, created
from api.http.documents import Document, body_of, validate
from api.http.parameters import NextLink
from api.http.problems import InvalidDocumentError, describe_errors
from api.webhooks.service import Probe, webhook_answer
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store import Session, audit, experiments, webhook_deliveries, webhooks
from fedcore.platform.store.tables import WebhookRecord
from fedq.schemas import Delivery, NewWebhook, Page, Webhook, WebhookEdit, WebhookRequest

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

BY_ITS_OWNER = "its owner disabled it"
CLEARABLE = "experiment_id"
"""The field that null clears; in other fields it changes nothing."""

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of webhooks per page.")]


@router.post(
    "",
    status_code=201,
    responses={**created("webhook"), **describe_errors(400, 413, 415, 422)},
    openapi_extra=body_of("WebhookRequest"),
    summary="Create a webhook",
)
async def create_webhook(
    principal: Submitter,
    document: Document,
    database: DatabaseDep,
    facts: Audit,
    probe: Probe,
    response: Response,
) -> NewWebhook:
    """Create a webhook: status changes are sent to a URL by POST, signed according to [Standard
    Webhooks](https://www.standardwebhooks.com).

    The response contains the signing secret, which is not shown again. The URL must be `https://`
    with a public address, unless the operator allows others; it is validated now and before each
    attempt. Events are sent at least once, with a constant id (`webhook-id`). Any 2xx status
    acknowledges them; otherwise, delivery is retried for about a day.
    """
    wanted = validate(WebhookRequest, document.value)
    await probe(wanted.url)

    def work() -> tuple[WebhookRecord, str]:
        fields = wanted.model_dump(exclude={"events"})
        with database.transaction() as session:
            _refuse_foreign(session, wanted.experiment_id, principal.owner)
            made = webhooks.create(session, owner=principal.owner, kinds=wanted.events, **fields)
            audit.record(session, facts, made[0].id)
        return made

    record, secret = await run_in_threadpool(work)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    return NewWebhook(**webhook_answer(record).model_dump(), secret=secret)


@router.get("", responses=describe_errors(422), summary="List webhooks")
def read_webhooks(
    principal: Reader, database: DatabaseDep, link: NextLink, limit: Limit = 50, cursor: Cursor = None
) -> Page[Webhook]:
    """Return webhooks, newest first; administrators see the webhooks of all owners."""
    with database.reading() as session:
        page = webhooks.page(session, owner=principal.sees, limit=limit, cursor=cursor)
    return Page[Webhook](items=[webhook_answer(record) for record in page.items], next=link(page.next))


@router.get("/{webhook_id}", responses=describe_errors(404, 422), summary="Read a webhook")
def read_webhook(principal: Reader, webhook_id: WebhookId, database: DatabaseDep) -> Webhook:
    """Return a webhook and its state, without the secret."""
    with database.reading() as session:
        return webhook_answer(webhooks.find(session, webhook_id, principal.sees))


@router.patch(
    "/{webhook_id}",
    responses=describe_errors(400, 404, 412, 413, 415, 422),
    openapi_extra=body_of("WebhookEdit"),
    summary="Edit a webhook",
)
async def edit_webhook(
    principal: Submitter,
    webhook_id: WebhookId,
    document: Document,
    database: DatabaseDep,
    facts: Audit,
    probe: Probe,
    if_match: IfMatch = None,
) -> Webhook:
    """Change the given fields.

    Pending deliveries go to the new URL; events that occur while it is disabled are never sent.
    """
    wanted = validate(WebhookEdit, document.value)
    if wanted.url is not None:
        await probe(wanted.url)

    def work() -> WebhookRecord:
        with database.transaction() as session:
            record = webhooks.find(session, webhook_id, principal.sees)
            if if_match is not None:
                session.refresh(record, with_for_update=True)
                check_match(if_match, webhook_answer(record))
            _refuse_foreign(session, wanted.experiment_id, record.owner)
            webhooks.edit(session, webhook_id, **_changes(wanted))
            if wanted.enabled is not None:
                webhooks.enable(session, webhook_id) if wanted.enabled else webhooks.disable(
                    session, webhook_id, BY_ITS_OWNER
                )
            audit.record(session, facts, webhook_id)
            return webhooks.find(session, webhook_id)

    return webhook_answer(await run_in_threadpool(work))


@router.delete(
    "/{webhook_id}", status_code=204, responses=describe_errors(404, 422), summary="Delete a webhook"
)
def delete_webhook(principal: Submitter, webhook_id: WebhookId, database: DatabaseDep, facts: Audit) -> None:
    """Delete a webhook. Pending deliveries are not sent."""
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        webhooks.delete(session, webhook_id)
        audit.record(session, facts, webhook_id)


@router.post(
    "/{webhook_id}/ping",
    status_code=202,
    responses=describe_errors(404, 409, 422),
    summary="Send a test event",
)
def ping_webhook(
    principal: Submitter, webhook_id: WebhookId, database: DatabaseDep, facts: Audit
) -> Delivery:
    """Send an event `webhook.ping`, independent of the webhook's events.

    Read `last_delivery` of the webhook for its result. 409 while disabled.
    """
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        record = webhook_deliveries.ping(session, webhook_id)
        audit.record(session, facts, webhook_id)
    return Delivery(
        id=record.id,
        status=DeliveryStatus.PENDING,
        attempted_at=None,
        error=None,
        next_attempt_at=record.due_at,
    )


def _changes(wanted: WebhookEdit) -> dict[str, Any]:
    """Return the columns to change."""
    given = wanted.model_dump(exclude_unset=True, exclude={"enabled"})
    kept = {field: value for field, value in given.items() if value is not None or field == CLEARABLE}
    return {"kinds" if field == "events" else field: value for field, value in kept.items()}


def _refuse_foreign(session: Session, experiment_id: str | None, owner: str) -> None:
    """Raise InvalidDocumentError for an experiment of another owner."""
    if experiment_id is None:
        return
    try:
        experiments.find(session, experiment_id, owner)
    except ResourceNotFoundError as error:
        raise InvalidDocumentError.at("/experiment_id", str(error)) from error
