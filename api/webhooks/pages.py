"""`/webhooks`: webhooks and the state of their last delivery."""

from fastapi import APIRouter, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import Cursor, DatabaseDep, WebhookId
from api.web.rendering import render_page
from api.webhooks.service import webhook_answer
from fedcore.platform.store import webhooks
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from fedq.schemas import Webhook

PAGE = 50
EDITABLE = {"url", "name", "events", "experiment_id"}

router = APIRouter(include_in_schema=False)


@router.get("/webhooks")
def read_list(request: Request, principal: Reader, database: DatabaseDep, cursor: Cursor = None) -> Response:
    """Return the webhooks, newest first; administrators see all. The page writes through
    `/v1/webhooks` only.
    """
    with database.reading() as session:
        found = webhooks.page(session, owner=principal.sees, limit=PAGE, cursor=cursor)
    rows = [(hook, _terms(hook)) for hook in map(webhook_answer, found.items)]
    return render_page(
        request, "webhooks.html", rows=rows, next=found.next, kinds=list(EventKind), endings=ENDINGS
    )


@router.get("/webhooks/{webhook_id}")
def read_one(request: Request, principal: Reader, webhook_id: WebhookId, database: DatabaseDep) -> Response:
    """Return a webhook with the state of its last delivery."""
    with database.reading() as session:
        hook = webhook_answer(webhooks.find(session, webhook_id, principal.sees))
    return render_page(
        request, "webhook.html", hook=hook, terms=_terms(hook), kinds=list(EventKind), endings=ENDINGS
    )


def _terms(webhook: Webhook) -> str:
    """Return the editable fields as JSON for the form."""
    return webhook.model_dump_json(include=EDITABLE)
