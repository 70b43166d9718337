"""Wake-ups go out in the background, and pending ones of a queue are coalesced."""

from threading import Event

import pytest

from fedcore.errors import SettingsError
from fedcore.platform.wakeups import WakeupNotifier, require_broker
from tests.support.polling import eventually


class SlowBroker:
    """Takes the first wake-up only once it is released."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.released = Event()

    def send(self, queue: str) -> None:
        self.sent.append(queue)
        assert self.released.wait(60)


@pytest.fixture
def broker() -> SlowBroker:
    return SlowBroker()


def test_a_slow_broker_delays_no_caller_and_pending_wakeups_are_coalesced(broker: SlowBroker) -> None:
    wakeups = WakeupNotifier(broker.send)
    wakeups.notify(["gpu"])
    eventually(lambda: broker.sent == ["gpu"])
    for _ in range(100):
        wakeups.notify(["gpu", "default"])
    broker.released.set()
    wakeups.close(patience_s=60)
    assert broker.sent == ["gpu", "gpu", "default"]


def test_pending_wakeups_are_sent_before_the_end(broker: SlowBroker) -> None:
    broker.released.set()
    wakeups = WakeupNotifier(broker.send)
    wakeups.notify(["gpu"])
    wakeups.close(patience_s=60)
    assert broker.sent == ["gpu"]


def test_the_end_waits_no_longer_than_it_should_for_a_broker_that_hangs(broker: SlowBroker) -> None:
    wakeups = WakeupNotifier(broker.send)
    wakeups.notify(["gpu"])
    wakeups.close(patience_s=0.01)
    assert not broker.released.is_set()
    broker.released.set()


def test_a_notifier_that_sent_nothing_ends_at_once(broker: SlowBroker) -> None:
    WakeupNotifier(broker.send).close(patience_s=60)
    assert broker.sent == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("foo://user:secret@host", "foo is no kind of broker"),
        ("redis://user:secret/1@host", "the port is not a number"),
        ("redis://host:99999/0", "the port is not a number"),
        ("secret@host", "is no URL"),
        ("", "is no URL"),
    ],
)
def test_a_url_that_no_broker_has_is_refused_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(SettingsError) as refused:
        require_broker(url)
    assert str(refused.value).startswith(f"FEDQ_BROKER_URL: {reason}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%2Fw@host:1/0",
        "rediss://host",
        "redis+socket:///a/b",
        "amqp://host//",
        "filesystem:///a",
        "sentinel://a:26379;sentinel://b:26379",
    ],
)
def test_a_broker_may_be_away(url: str) -> None:
    require_broker(url)
