"""Webhooks and what they deliver."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from fedcore.platform.status import DeliveryStatus
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from fedcore.platform.webhooks.urls import MOST_CHARACTERS
from fedq.schemas.base import Schema

Url = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
Name = Annotated[str, Field(max_length=200)]
Events = Annotated[list[EventKind], Field(min_length=1, max_length=len(EventKind))]
ExperimentId = Annotated[str, Field(min_length=1, max_length=40)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]


class WebhookRequest(BaseModel):
    """A webhook that is to be made."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: Url
    """Where to send: `https://`, to a public address, without user, password and fragment."""
    events: Events = list(ENDINGS)
    """What to tell of; absent, the ends of experiments."""
    name: Name = ""
    """For people: what it is for."""
    experiment_id: ExperimentId | None = None
    """Tell of this experiment and its runs alone; absent, of all."""
    tag: Tag | None = None
    """Tell of experiments with this tag, and their runs, alone; absent, of all."""


class WebhookEdit(BaseModel):
    """What is to be changed of a webhook; what is left out stays."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: Url | None = None
    """Where to send."""
    events: Events | None = None
    """What to tell of."""
    name: Name | None = None
    """What it is for."""
    experiment_id: ExperimentId | None = None
    """Tell of this experiment alone; null: of all."""
    tag: Tag | None = None
    """Tell of experiments with this tag alone; null: of all."""
    enabled: StrictBool | None = None
    """False: tell nothing more, and drop what waits to be sent; true: tell again from now on."""


class Webhook(Schema):
    """A webhook, without its secret."""

    id: str
    """Opaque; sorts by time of creation."""
    name: str
    """What it is for."""
    owner: str
    """Whose experiments it tells of."""
    url: str
    """Where it sends."""
    events: list[str]
    """What it tells of."""
    experiment_id: str | None
    """The experiment of which alone it tells; null: of all."""
    tag: str | None
    """The tag of the experiments of which alone it tells; null: of all."""
    enabled: bool
    """Whether it tells anything."""
    disabled_at: datetime | None
    """Since when it does not (UTC)."""
    disabled_reason: str | None
    """Why it does not."""
    failing_since: datetime | None
    """The first attempt that failed since something was last delivered (UTC); null: all is well."""
    previous_secret_until: datetime | None
    """Until when the secret before the last change of secrets signs as well (UTC)."""
    created_at: datetime
    """When it was made (UTC)."""


class NewWebhook(Webhook):
    """A webhook with the secret that was just made for it."""

    secret: str
    """What it signs by, `whsec_...`. It cannot be read again."""


class WebhookPage(Schema):
    """A page of webhooks, newest first."""

    items: list[Webhook]
    """The webhooks."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class Attempt(Schema):
    """One time that something was sent."""

    at: datetime
    """When (UTC)."""
    seconds: float
    """How long it took."""
    code: int | None
    """The status of the answer; null: there was none."""
    answer: str
    """The beginning of the answer's body."""
    error: str | None
    """Why it failed; null: it was delivered."""


class Delivery(Schema):
    """Something that a webhook is told."""

    id: str
    """Opaque; sorts by time. The receiver gets it as `webhook-id`, the same with every attempt."""
    webhook_id: str
    """Whom it is for."""
    event: str
    """What it tells of."""
    status: DeliveryStatus
    """`pending`, `delivered`, or `failed`: given up."""
    attempts: list[Attempt]
    """The latest attempts, the oldest first."""
    next_attempt_at: datetime | None
    """When it is sent next, at the earliest (UTC); null: it is not."""
    created_at: datetime
    """When what it tells of happened (UTC)."""
    finished_at: datetime | None
    """When it was delivered or given up (UTC)."""
    payload: dict[str, Any]
    """What is sent."""


class DeliveryPage(Schema):
    """A page of the log of deliveries, newest first."""

    items: list[Delivery]
    """The deliveries."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
