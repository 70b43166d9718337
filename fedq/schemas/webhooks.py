"""Webhooks, the state of their last delivery, and their messages."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from fedcore.block import Name
from fedcore.platform.status import DeliveryStatus, Status
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from fedcore.platform.webhooks.urls import MOST_CHARACTERS
from fedq.schemas.base import (
    ArmName,
    ExperimentId,
    ExperimentName,
    RequestBody,
    RunId,
    Schema,
    Tags,
    UserName,
    WebhookId,
)

Url = Annotated[
    str, Field(min_length=1, max_length=MOST_CHARACTERS, examples=["https://hooks.example.org/fedq"])
]
Events = Annotated[list[EventKind], Field(min_length=1, max_length=len(EventKind))]
WatchedExperiment = Annotated[str, Field(min_length=1, max_length=40)]


class WebhookRequest(RequestBody):
    """Request to create a webhook."""

    url: Url
    """Destination URL: `https://` with a public address, without user, password and fragment."""
    events: Events = Field(default=list(ENDINGS))
    """Events to send (default: the final status of experiments)."""
    name: Name = Field(default="", examples=["to the lab's chat"])
    """Purpose of the webhook."""
    experiment_id: WatchedExperiment | None = None
    """Send events of this experiment and its runs only (default: all experiments)."""


class WebhookEdit(RequestBody):
    """Changes to a webhook. Omitted fields keep their values."""

    url: Url | None = None
    """Destination URL."""
    events: Events | None = Field(default=None, examples=[["run.failed"]])
    """Events to send."""
    name: Name | None = None
    """Purpose of the webhook."""
    experiment_id: WatchedExperiment | None = None
    """Send events of this experiment only; null: of all experiments."""
    enabled: StrictBool | None = Field(default=None, examples=[True])
    """False disables the webhook and drops pending deliveries; true enables it again."""


class Delivery(Schema):
    """State of the delivery of an event to a webhook."""

    id: str = Field(examples=["msg_01k9x3zq7rh2v8m4t6w0ybe5d4"])
    """Opaque; sorts by time. Sent as `webhook-id`, the same in every attempt."""
    status: DeliveryStatus
    """`pending`, `delivered`, or `failed` after the last attempt."""
    attempted_at: datetime | None
    """Time of the latest attempt (UTC); null before the first."""
    error: str | None
    """Error of the latest attempt; null if it succeeded."""
    next_attempt_at: datetime | None
    """Earliest time of the next attempt (UTC); null if there is none."""


class Webhook(Schema):
    """A webhook, without its secret."""

    id: WebhookId
    """Opaque; sorts by time of creation."""
    name: str = Field(examples=["to the lab's chat"])
    """Purpose of the webhook."""
    owner: UserName
    """Owner of the webhook and its experiments."""
    url: str = Field(examples=["https://hooks.example.org/fedq"])
    """Destination URL."""
    events: list[str] = Field(examples=[["experiment.succeeded"]])
    """Events that are sent."""
    experiment_id: ExperimentId | None
    """The only experiment whose events are sent; null: all experiments."""
    enabled: bool
    """True if events are sent."""
    disabled_at: datetime | None
    """Time at which the webhook was disabled (UTC)."""
    disabled_reason: str | None
    """Reason why the webhook was disabled."""
    failing_since: datetime | None
    """Time of the first failed attempt since the last successful delivery (UTC); null if there is
    none.
    """
    last_delivery: Delivery | None
    """The delivery that was attempted last; null before the first attempt."""
    created_at: datetime
    """Time of creation (UTC)."""


class NewWebhook(Webhook):
    """A new webhook with its secret."""

    secret: str = Field(examples=["whsec_<base64>"])
    """Signing secret, `whsec_...`. It is not shown again."""


class ExperimentMessageData(Schema):
    """The experiment that a message is about, at the moment of the change."""

    owner: UserName
    """Owner of the experiment."""
    experiment_id: ExperimentId
    """The experiment."""
    name: ExperimentName
    """Name of the experiment."""
    tags: Tags
    """Tags of the experiment."""
    status: Status
    """The new status."""
    error: str | None
    """First error of its runs; null without one."""


class ExperimentMessage(Schema):
    """Message to a webhook: an experiment has changed its status."""

    type: Literal[
        EventKind.EXPERIMENT_QUEUED,
        EventKind.EXPERIMENT_RUNNING,
        EventKind.EXPERIMENT_PAUSED,
        EventKind.EXPERIMENT_SUCCEEDED,
        EventKind.EXPERIMENT_FAILED,
        EventKind.EXPERIMENT_CANCELLED,
    ]
    """`experiment.` and the new status."""
    timestamp: datetime
    """Time of the change (UTC)."""
    data: ExperimentMessageData
    """The experiment."""


class RunMessageData(ExperimentMessageData):
    """The run that a message is about, at the moment of the change."""

    run_id: RunId
    """The run."""
    arm: int
    """Index of its arm."""
    arm_name: ArmName
    """Name of its arm."""
    seed: int
    """Its seed."""
    rounds_done: int
    """Committed rounds."""
    rounds_total: int
    """Rounds of the run."""
    diverged_round: int | None
    """Round in which it diverged; null if it did not."""
    stop_reason: str | None
    """Reason why it was stopped early; null if it was not."""
    error: str | None
    """Its error; null without one."""


class RunMessage(Schema):
    """Message to a webhook: a run has changed its status."""

    type: Literal[
        EventKind.RUN_QUEUED,
        EventKind.RUN_RUNNING,
        EventKind.RUN_WAITING,
        EventKind.RUN_PAUSED,
        EventKind.RUN_SUCCEEDED,
        EventKind.RUN_FAILED,
        EventKind.RUN_CANCELLED,
    ]
    """`run.` and the new status."""
    timestamp: datetime
    """Time of the change (UTC)."""
    data: RunMessageData
    """The run."""


class PingMessageData(Schema):
    """The webhook that is tested."""

    webhook_id: WebhookId
    """The webhook."""


class PingMessage(Schema):
    """Message to a webhook: a user tests it."""

    type: Literal["webhook.ping"]
    """Always `webhook.ping`."""
    timestamp: datetime
    """Time of the request (UTC)."""
    data: PingMessageData
    """The webhook."""
