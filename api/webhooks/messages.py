"""The messages to webhooks, for the OpenAPI document; `webhook_outbox` writes them.

Written here instead of as routes of FastAPI's `webhooks`: it wraps bodies in a field of its own,
which pydantic warns of for schemas that are built when first used.
"""

from typing import Any

from fedq.schemas import ExperimentMessage, PingMessage, RunMessage, Schema

MESSAGES: dict[str, tuple[type[Schema], str, str]] = {
    "experiment": (
        ExperimentMessage,
        "Status of an experiment",
        "Sent when an experiment changes its status.",
    ),
    "run": (RunMessage, "Status of a run", "Sent when a run changes its status."),
    "ping": (PingMessage, "Test event", "Sent by `POST /v1/webhooks/{webhook_id}/ping`."),
}
"""Message, summary and description of each webhook."""
HEADERS = {
    "webhook-id": "Id of the delivery, the same in every attempt.",
    "webhook-timestamp": "Time of this attempt, in seconds since 1970.",
    "webhook-signature": "Signatures, separated by spaces: `v1,` and the HMAC-SHA256 of id, time and body.",
}
"""Headers of each message."""


def operations() -> dict[str, Any]:
    """Return the `webhooks` of the OpenAPI document."""
    return {
        name: {"post": _operation(name, message.__name__, summary, description)}
        for name, (message, summary, description) in MESSAGES.items()
    }


def _operation(name: str, message: str, summary: str, description: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{message}"}
    return {
        "tags": ["webhooks"],
        "operationId": f"receive_{name}",
        "summary": summary,
        "description": description,
        "parameters": [
            {
                "name": header,
                "in": "header",
                "required": True,
                "schema": {"type": "string"},
                "description": told,
            }
            for header, told in HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"2XX": {"description": "Confirms the delivery."}},
    }
