"""`fedq queue` and `workers`."""

from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, show


def queue(as_json: AsJson = False) -> None:
    """Show the number of queued and running runs of each queue."""
    with connect() as client:
        show(client.queues().items, views.queues, as_json=as_json)


def workers(as_json: AsJson = False) -> None:
    """List the workers and the runs they execute."""
    with connect() as client:
        show(client.workers(), views.workers, as_json=as_json)
