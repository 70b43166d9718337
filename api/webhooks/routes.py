"""`/v1/webhooks`: made, listed, read, changed, given a new secret, deleted."""

from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.concurrency import run_in_threadpool

from api.http.audit_trail import Note
from api.http.authentication import Reader, Submitter
from api.http.dependencies import Configuration, Cursor, Store, WebhookId
from api.http.documents import Document, body_of, validate
from api.http.problems import InvalidDocumentError, responses
from api.http.routing import Router
from api.webhooks.responses import new_webhook_answer, webhook_answer
from api.webhooks.url_validation import Probe
from fedcore.errors import NotFoundError
from fedcore.platform.store import Session, experiments, webhooks
from fedcore.platform.store.tables import WebhookRecord
from fedq.schemas import Flaw, NewWebhook, Webhook, WebhookEdit, WebhookPage, WebhookRequest

router = Router(prefix="/v1/webhooks", tags=["webhooks"])

BY_ITS_OWNER = "its owner disabled it"
CLEARABLE = frozenset({"experiment_id", "tag"})
"""What null removes; elsewhere it changes nothing."""

Limit = Annotated[int, Query(ge=1, le=200, description="Webhooks on a page, at most.")]
MADE: dict[int | str, dict[str, Any]] = {
    201: {"headers": {"Location": {"description": "Where the webhook is.", "schema": {"type": "string"}}}},
}


@router.post(
    "",
    status_code=201,
    responses={**MADE, **responses(400, 413, 415, 422)},
    openapi_extra=body_of("WebhookRequest"),
    summary="Make a webhook",
)
async def create(
    principal: Submitter, document: Document, database: Store, settings: Configuration, note: Note, probe: Probe, response: Response
) -> NewWebhook:
    """Have changes of status sent to a URL, by POST, signed as [Standard Webhooks](https://www.standardwebhooks.com) has it.

    The answer holds the secret by which they are signed; it cannot be read again. The URL must be `https://` and lead to a public
    address, unless the operator allows others; it is looked at now, and again before everything that is sent. Each change is sent at
    least once, under an id (`webhook-id`) that stays the same; any 2xx in time says that it has arrived. What does not arrive is tried
    again for about a day.
    """
    wanted = validate(WebhookRequest, document.value)
    await probe(wanted.url)

    def work() -> tuple[WebhookRecord, str]:
        fields = wanted.model_dump(exclude={"events"})
        with database.transaction() as session:
            _refuse_foreign(session, wanted.experiment_id, principal.owner)
            made = webhooks.create(session, owner=principal.owner, kinds=wanted.events, most=settings.webhooks_max, **fields)
            note(session, made[0].id)
        return made

    record, secret = await run_in_threadpool(work)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    return new_webhook_answer(record, secret)


@router.get("", responses=responses(422), summary="List webhooks")
def read_webhooks(principal: Reader, database: Store, limit: Limit = 50, cursor: Cursor = None) -> WebhookPage:
    """Newest first, a page at a time; of all owners for administrators."""
    with database.reading() as session:
        page = webhooks.page(session, owner=principal.sees, limit=limit, cursor=cursor)
    return WebhookPage(items=[webhook_answer(record) for record in page.items], next=page.next)


@router.get("/{webhook_id}", responses=responses(404, 422), summary="Read a webhook")
def read_webhook(principal: Reader, webhook_id: WebhookId, database: Store) -> Webhook:
    """One webhook, with whether it works, but without its secret."""
    with database.reading() as session:
        return webhook_answer(webhooks.find(session, webhook_id, principal.sees))


@router.patch(
    "/{webhook_id}", responses=responses(400, 404, 413, 415, 422), openapi_extra=body_of("WebhookEdit"), summary="Change a webhook"
)
async def edit(principal: Submitter, webhook_id: WebhookId, document: Document, database: Store, note: Note, probe: Probe) -> Webhook:
    """Change what is given and leave the rest. What waits is sent to the new URL; what is missed while it is disabled stays unsent."""
    wanted = validate(WebhookEdit, document.value)
    if wanted.url is not None:
        await probe(wanted.url)

    def work() -> WebhookRecord:
        with database.transaction() as session:
            owner = webhooks.find(session, webhook_id, principal.sees).owner
            _refuse_foreign(session, wanted.experiment_id, owner)
            webhooks.edit(session, webhook_id, **_changes(wanted))
            if wanted.enabled is not None:
                webhooks.enable(session, webhook_id) if wanted.enabled else webhooks.disable(session, webhook_id, BY_ITS_OWNER)
            note(session, webhook_id)
            return webhooks.find(session, webhook_id)

    return webhook_answer(await run_in_threadpool(work))


@router.post("/{webhook_id}/rotate", responses=responses(404, 422), summary="Change the secret")
def rotate(principal: Submitter, webhook_id: WebhookId, database: Store, note: Note) -> NewWebhook:
    """Give a webhook a new secret, which is in the answer and cannot be read again. For a day all is signed by the old one too."""
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        record, secret = webhooks.rotate(session, webhook_id)
        note(session, webhook_id)
    return new_webhook_answer(record, secret)


@router.delete("/{webhook_id}", status_code=204, responses=responses(404, 422), summary="Delete a webhook")
def delete(principal: Submitter, webhook_id: WebhookId, database: Store, note: Note) -> None:
    """Remove a webhook with its log; what waits to be sent is not sent."""
    with database.transaction() as session:
        webhooks.find(session, webhook_id, principal.sees)
        webhooks.delete(session, webhook_id)
        note(session, webhook_id)


def _changes(wanted: WebhookEdit) -> dict[str, Any]:
    """The columns to be changed."""
    given = wanted.model_dump(exclude_unset=True, exclude={"enabled"})
    kept = {field: value for field, value in given.items() if value is not None or field in CLEARABLE}
    return {"kinds" if field == "events" else field: value for field, value in kept.items()}


def _refuse_foreign(session: Session, experiment_id: str | None, owner: str) -> None:
    """Raises InvalidRequestError for an experiment that is not the owner's."""
    if experiment_id is None:
        return
    try:
        experiments.find(session, experiment_id, owner)
    except NotFoundError as error:
        raise InvalidDocumentError([Flaw(pointer="/experiment_id", detail=str(error))]) from error
