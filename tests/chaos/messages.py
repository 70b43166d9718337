"""Wake-ups and the broker that carries them: slow, or hours late, out of order and doubled."""

import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedcore.platform.store.tables import RunRecord
from tests.builders.specifications import merged
from tests.chaos.world import END_S, World
from tests.support.brokers import broker, connect
from tests.support.polling import eventually
from tests.support.slowness import AT_ONCE, slowed
from tests.workers.deployment import EXPERIMENT, assert_undisturbed
from workers.celery_app import celery_app, queue_name, send_wakeup

QUEUE, DEAD = queue_name("default"), "dead"
UNACKNOWLEDGED, SINCE = "unacked", "unacked_index"
"""Where Celery's transport keeps what was taken and not acknowledged yet, and since when: after an
hour it is delivered again.
"""
HOURS_S = 2 * 3600.0
HELD_BACK = 20
BESIDE = merged(EXPERIMENT, {"name": "beside late wake-ups", "rounds": 20})


def slow_broker(
    pause_s: float, at_once: int = AT_ONCE, for_s: float | None = None
) -> Callable[[World, RunRecord], float]:
    """The worker is killed while each piece of an answer takes so long: until the run goes on, or
    for so many seconds.
    """

    def strike(world: World, run: RunRecord) -> float:
        with connect(world.deployment.broker_url) as client:
            others = [other["id"] for other in client.client_list() if int(other["id"]) != client.client_id()]
            world.passing.enter_context(_answering_slowly(world.deployment.broker_url, pause_s, at_once))
            # Or they would go on by the connections that they have.
            for other in others:
                client.client_kill_filter(_id=other)
        world.deployment.send(run, signal.SIGKILL)
        if for_s is not None:
            time.sleep(for_s)
            world.passing.close()
        return time.monotonic()

    return strike


def late_messages(world: World, run: RunRecord) -> float:
    """A worker is killed, and many wake-ups come that were sent when there was nothing to do, while
    its run waits and is taken up.

    So does one that a worker had taken when it died, hours ago: the next that starts delivers it
    again.
    """
    _leave_unacknowledged(world.deployment.broker_url)
    held_back = _held_back()
    world.parent(run).kill()
    moment = time.monotonic()
    _deliver(world.deployment.broker_url, held_back, random.Random(run.fence))
    return moment


def assert_unmoved(world: World) -> None:
    """The run is over: wake-ups that come now change nothing of it, nor of one that is under
    way.
    """
    url, before = world.deployment.broker_url, world.run
    beside = world.deployment.submit(BESIDE)
    _deliver(url, _held_back(), random.Random(before.fence))
    (other,) = world.deployment.ended(beside)
    _deliver(url, _held_back(), random.Random(before.fence))
    eventually(lambda: _all_delivered(url), timeout_s=END_S)
    after = world.run
    assert (after.status, after.fence, after.done, after.model) == (
        before.status,
        before.fence,
        before.done,
        before.model,
    )
    assert_undisturbed(world.deployment, after, world.shards)
    assert_undisturbed(world.deployment, other)


@contextmanager
def _answering_slowly(url: str, pause_s: float, at_once: int) -> Iterator[None]:
    place = Path(url.removeprefix("redis+socket://"))
    aside = place.rename(place.with_name("aside"))
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(place))
    door.listen()
    try:
        with slowed(door, lambda: _connected(aside), pause_s, at_once):
            yield
    finally:
        aside.replace(place)


def _connected(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(place))
    return connection


def _held_back() -> list[bytes]:
    """Genuine wake-ups, kept from those they were sent to.

    They carry no time, so hours make no difference.
    """
    with broker("redis") as url, connect(url) as elsewhere:
        for _ in range(HELD_BACK):
            assert send_wakeup("default", url)
        return list(elsewhere.lrange(QUEUE, 0, -1))


def _deliver(url: str, messages: list[bytes], draws: random.Random) -> None:
    """Put wake-ups into the queue, each of them twice, in any order."""
    twice = [*messages, *messages]
    draws.shuffle(twice)
    with connect(url) as client:
        client.rpush(QUEUE, *twice)


def _all_delivered(url: str) -> bool:
    """True if no wake-up is left, nor one that was received and not acknowledged."""
    with connect(url) as client:
        return not (client.llen(QUEUE) or client.hlen(UNACKNOWLEDGED))


def _leave_unacknowledged(url: str) -> None:
    """Take a wake-up as a worker does that dies before it says so, and let hours pass."""
    send_wakeup(DEAD, url)
    with celery_app(url).connection_for_read() as connection, connect(url) as client:
        channel = connection.default_channel
        channel.do_restore = False
        assert channel.basic_get(queue_name(DEAD)) is not None
        for tag, kept in client.hgetall(UNACKNOWLEDGED).items():
            # Live workers would have been faster, had it been theirs from the start.
            client.hset(UNACKNOWLEDGED, tag, kept.replace(queue_name(DEAD).encode(), QUEUE.encode()))
            client.zincrby(SINCE, -HOURS_S, tag)
