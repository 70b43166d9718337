"""Tables of webhooks and deliveries."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedq.cli.views import TIME, table
from fedq.schemas import Delivery, Webhook


def webhooks(items: Sequence[Webhook]) -> Table:
    """Table of webhooks."""
    rows = (
        (item.id, item.owner, item.name, item.url, ", ".join(item.events), _state(item)) for item in items
    )
    return table(("webhook", "owner", "name", "url", "events", "state"), rows)


def webhook(item: Webhook) -> RenderableType:
    """Description of a webhook."""
    of = item.experiment_id or (f"experiments tagged {item.tag}" if item.tag else "all experiments")
    lines = [
        f"{item.id} {item.name}".rstrip(),
        f"to {item.url}",
        f"{', '.join(item.events)} of {of} of {item.owner}",
        _state(item),
    ]
    return Text("\n".join(lines))


def deliveries(items: Sequence[Delivery]) -> Table:
    """Table of deliveries."""
    rows = (
        (item.id, item.event, item.status, f"{item.created_at:{TIME}}", len(item.attempts), _last(item))
        for item in items
    )
    return table(("delivery", "event", "status", "created (UTC)", "attempts", "last result"), rows)


def delivery(item: Delivery) -> RenderableType:
    """A delivery and its attempts."""
    rows = (
        (f"{each.at:{TIME}}", f"{each.seconds:.3f}", each.code, each.error, each.answer)
        for each in item.attempts
    )
    head = Text(f"{item.id} {item.event}: {item.status}")
    return (
        Group(head, table(("sent (UTC)", "seconds", "status code", "error", "response"), rows))
        if item.attempts
        else head
    )


def _state(hook: Webhook) -> str:
    if not hook.enabled:
        return f"disabled: {hook.disabled_reason}"
    return f"failing since {hook.failing_since:{TIME}} UTC" if hook.failing_since else "active"


def _last(delivery: Delivery) -> str | None:
    if not delivery.attempts:
        return None
    last = delivery.attempts[-1]
    return last.error or str(last.code)
