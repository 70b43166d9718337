"""A worker that has gone deaf: the broker takes nudges for its queues, and none of them comes out where it listens."""

from workers import lookout, worker

LOOK_S = 0.3


def main() -> None:
    """As `workers.worker`."""
    # Waits of seconds are shown by waits of tenths of one.
    lookout.LOOK_S = LOOK_S
    worker.queue_name = lambda queue: f"elsewhere.{queue}"  # type: ignore[attr-defined]
    worker.main()
