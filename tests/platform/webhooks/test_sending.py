"""An attempt reaches the address that was checked and no other, and ends in bounded time and size
whatever the receiver does.
"""

import socket
import ssl
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network
from threading import Thread

import pytest

from fedcore.platform.webhooks.protocol import ReceiverResponse
from fedcore.platform.webhooks.sending import MOST_BYTES, send
from fedcore.platform.webhooks.urls import Address, Network, Resolve, resolve
from tests.support.receiver import LOOPBACK, Receiver, receiving


@pytest.fixture(scope="module")
def listening() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def receiver(listening: Receiver) -> Receiver:
    listening.received.clear()
    return listening


def sent(
    url: str, *, allowed: Sequence[Network] = LOOPBACK, by: Resolve = resolve, timeout_s: float = 30.0
) -> ReceiverResponse:
    return send(
        url,
        {"webhook-id": "msg_1", "Content-Type": "application/json"},
        '{"a": "ö"}',
        allowed=allowed,
        resolve=by,
        timeout_s=timeout_s,
    )


def test_message_arrives_byte_by_byte(receiver: Receiver) -> None:
    assert sent(f"{receiver.url}/ok") == ReceiverResponse(200)
    (request,) = receiver.received
    assert (request.path, request.body) == ("/ok", '{"a": "ö"}')
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["host"] == receiver.url.removeprefix("http://")


@pytest.mark.parametrize("code", [201, 204, 299])
def test_any_success_is_one(receiver: Receiver, code: int) -> None:
    assert (sent(f"{receiver.url}/{code}").error, sent(f"{receiver.url}/{code}").code) == (None, code)


@pytest.mark.parametrize("code", [400, 404, 410, 500])
def test_any_other_answer_is_a_failure(receiver: Receiver, code: int) -> None:
    assert sent(f"{receiver.url}/{code}") == ReceiverResponse(code, f"the answer was {code}")


def test_a_receiver_that_is_busy_says_until_when(receiver: Receiver) -> None:
    assert sent(f"{receiver.url}/busy").retry_after_s == 7_200


def test_no_redirect_is_followed(receiver: Receiver) -> None:
    answer = sent(f"{receiver.url}/redirect")
    assert (answer.code, answer.error) == (307, "the answer was 307, and redirects are not followed")
    assert [request.path for request in receiver.received] == ["/redirect"]


@pytest.mark.parametrize("way", ["huge", "long_head"])
def test_an_answer_without_end_is_hung_up_on(receiver: Receiver, way: str) -> None:
    assert sent(f"{receiver.url}/{way}").error == f"the answer is larger than {MOST_BYTES} bytes"


@pytest.mark.parametrize("way", ["hang", "drip"])
def test_a_receiver_that_does_not_come_to_an_end_is_given_up_after_a_while(
    receiver: Receiver, way: str
) -> None:
    assert sent(f"{receiver.url}/{way}", timeout_s=0.3).error == "no whole answer within 0.3 s"


def test_answer_that_is_no_http_is_a_failure(receiver: Receiver) -> None:
    assert sent(f"{receiver.url}/nonsense").error


def test_nobody_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "refused" in str(sent(f"http://127.0.0.1:{port}/").error)


def test_an_environment_that_names_a_proxy_changes_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert sent(f"{receiver.url}/ok").error is None


@pytest.mark.parametrize(
    "allowed",
    [[], [ip_network("127.0.0.2/32")]],
)
def test_address_that_is_not_allowed_is_not_even_connected_to(
    receiver: Receiver, allowed: list[Network]
) -> None:
    answer = sent(f"{receiver.url}/ok", allowed=allowed)
    assert "FEDQ_WEBHOOK_NETWORKS" in str(answer.error)
    assert receiver.received == []


class Rebinding:
    """A name that has another address whenever it is asked for."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked += 1
        return [ip_address(text) for text in self.answers[min(self.asked, len(self.answers)) - 1]]


def test_the_name_is_resolved_once_and_what_it_means_afterwards_does_not_matter(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    allowed = [ip_network("127.0.0.1/32")]
    name = Rebinding(["127.0.0.1"], ["127.0.0.2"])
    assert sent(f"http://rebinding.example:{port}/ok", allowed=allowed, by=name).error is None
    assert name.asked == 1
    assert receiver.received[0].headers["host"] == f"rebinding.example:{port}"


def test_a_name_that_has_come_to_mean_another_address_is_refused_at_the_next_attempt(
    receiver: Receiver,
) -> None:
    port = receiver.url.rpartition(":")[2]
    name = Rebinding(["127.0.0.1"], ["169.254.169.254"])
    answers = [sent(f"http://rebinding.example:{port}/ok", by=name).error for _ in range(2)]
    assert answers[0] is None
    assert "link-local" in str(answers[1])


def test_addresses_are_tried_in_turn_but_only_those_that_may_be(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    name = Rebinding(["10.0.0.1", "127.0.0.9", "127.0.0.1"])
    assert sent(f"http://several.example:{port}/ok", by=name).error is None


def test_the_certificate_must_be_that_of_the_name_not_of_the_address() -> None:
    """A server that tells which name it was asked for, and has no certificate to show."""
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection, pytest.raises(ssl.SSLError):
                context.wrap_socket(connection, server_side=True)

        thread = Thread(target=accept)
        thread.start()
        answer = sent(f"https://named.example:{listener.getsockname()[1]}/", by=Rebinding(["127.0.0.1"]))
        thread.join()
    assert answer.error
    assert asked == ["named.example"]
