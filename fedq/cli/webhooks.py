"""`fedq webhook create`, `list`, `show`, `edit`, `delete` and `ping`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.platform.status import DeliveryStatus
from fedcore.platform.webhooks.events import EventKind
from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.terminal import (
    AsJson,
    ExitCode,
    Limit,
    echo,
    print_json,
    show,
    show_newest,
    stderr,
    tell,
)

if TYPE_CHECKING:
    from fedq.client import Client
    from fedq.schemas import Delivery

LOOK_S = 0.2
PING_S = 30.0

Url = Annotated[str, typer.Argument(metavar="URL", help="URL to send events to.")]
Webhook = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Webhook id.")]
Events = Annotated[
    list[EventKind] | None,
    typer.Option("--event", metavar="EVENT", help=f"Event to send; may be repeated: {', '.join(EventKind)}."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Purpose of the webhook.")]
Experiment = Annotated[
    str | None,
    typer.Option("--experiment", metavar="ID", help="Send events of this experiment only; '' for all."),
]
NewUrl = Annotated[str | None, typer.Option("--url", metavar="URL", help="URL to send events to.")]
Enabled = Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable the webhook.")]


def create(
    url: Url,
    event: Events = None,
    name: Name = None,
    experiment: Experiment = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print its signing secret, which cannot be shown again.

    By default, it is sent the final status of experiments.
    """
    with connect() as client:
        made = client.webhooks.create(url, event, name=name, experiment_id=experiment or None)
    if as_json:
        print_json(made)
        return
    stderr().print(f"Webhook {made.id}. Its secret is not shown again:")
    echo(made.secret)


def listing(limit: Limit = 50, as_json: AsJson = False) -> None:
    """List webhooks, newest first."""
    with connect() as client:
        show_newest(client.webhooks.list(), limit, views.webhooks, as_json=as_json)


def display(webhook: Webhook, as_json: AsJson = False) -> None:
    """Show a webhook and its state."""
    with connect() as client:
        show(client.webhooks.get(webhook), views.webhook, as_json=as_json)


def edit(
    webhook: Webhook,
    url: NewUrl = None,
    event: Events = None,
    name: Name = None,
    experiment: Experiment = None,
    enabled: Enabled = None,
    as_json: AsJson = False,
) -> None:
    """Edit, disable or enable a webhook."""
    given = {"url": url, "events": event, "name": name, "enabled": enabled}
    wanted: dict[str, object] = {field: value for field, value in given.items() if value is not None}
    if experiment is not None:
        wanted["experiment_id"] = experiment or None
    with connect() as client:
        show(client.webhooks.edit(webhook, **wanted), views.webhook, as_json=as_json)


def delete(webhook: Webhook, as_json: AsJson = False) -> None:
    """Delete a webhook. Pending deliveries are not sent."""
    with connect() as client:
        client.webhooks.delete(webhook)
    tell(None, as_json=as_json, deleted=webhook)


def ping(webhook: Webhook, as_json: AsJson = False) -> None:
    """Send a test event and show the result of its delivery, waiting up to 30 seconds."""
    with connect() as client:
        delivery = _tried(client, webhook, client.webhooks.ping(webhook))
        show(delivery, views.delivery, as_json=as_json)
    if delivery.status is not DeliveryStatus.DELIVERED:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


def _tried(client: Client, webhook: str, delivery: Delivery) -> Delivery:
    """Poll a webhook until this delivery, or a later one, was attempted, for at most `PING_S`."""
    deadline = time.monotonic() + PING_S
    while time.monotonic() < deadline:
        last = client.webhooks.get(webhook).last_delivery
        if last is not None and last.id >= delivery.id:
            return last
        time.sleep(LOOK_S)
    return delivery
