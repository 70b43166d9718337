"""One attempt to deliver: a POST to an address that was checked a moment before, within bounds of
time and size.

The name is resolved once, its addresses are checked, and the connection goes to one of those and to
no other, so that a name whose address changes between the look and the connection gains nothing.
The certificate is still that of the name. Redirects are not followed and no proxy is asked: both
would lead where nothing was checked.
"""

import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import httpcore

from fedcore.errors import WebhookUrlError
from fedcore.platform.webhooks.protocol import ReceiverResponse
from fedcore.platform.webhooks.urls import Network, Resolve, WebhookTarget

MOST_BYTES = 64 << 10
"""Size of a response, with its head; a longer one is cut off."""
ERROR_CHARACTERS = 1_000
"""Longest error."""


class _TooLargeError(Exception):
    """The answer does not end."""


def send(
    url: str,
    headers: Mapping[str, str],
    body: str,
    *,
    allowed: Sequence[Network],
    resolve: Resolve,
    timeout_s: float,
) -> ReceiverResponse:
    """POST `body`; whatever goes wrong is in the answer. `allowed` are networks that may be reached
    although they are not public.

    It takes `timeout_s` at most, and the time in which the name is resolved.
    """
    try:
        target = WebhookTarget.parse(url)
        backend = _Pinned(target, allowed, resolve, timeout_s)
        with httpcore.ConnectionPool(ssl_context=_trust(), network_backend=backend) as pool:
            return _exchange(pool, target, {"Host": target.authority, **headers}, body.encode())
    except WebhookUrlError as error:
        return ReceiverResponse(error=str(error))
    except _TooLargeError:
        return ReceiverResponse(error=f"the answer is larger than {MOST_BYTES} bytes")
    except (httpcore.TimeoutException, TimeoutError):
        return ReceiverResponse(error=f"no whole answer within {timeout_s:g} s")
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
        return ReceiverResponse(error=_said(error))


def _exchange(
    pool: httpcore.ConnectionPool, target: WebhookTarget, headers: Mapping[str, str], content: bytes
) -> ReceiverResponse:
    url = httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    with pool.stream(
        "POST", url, headers=[*fields, (b"Content-Length", str(len(content)).encode())], content=content
    ) as response:
        # Within the bounds, to see that the answer ends.
        for _ in response.iter_stream():
            pass
        code = response.status
        asked = {name.lower(): value for name, value in response.headers}.get(b"retry-after", b"")
    error = (
        None
        if 200 <= code < 300
        else f"the answer was {code}" + (", and redirects are not followed" if 300 <= code < 400 else "")
    )
    return ReceiverResponse(code, error, float(asked) if asked.isdigit() and len(asked) < 9 else 0.0)


def _said(error: Exception) -> str:
    """The error as text that any database can store."""
    text = str(error) or type(error).__name__
    reason = "the certificate does not hold: " if "CERTIFICATE" in text else ""
    return f"{reason}{text}"[:ERROR_CHARACTERS].replace("\0", "�")


@cache
def _trust() -> ssl.SSLContext:
    """Context that verifies certificates against the roots of `certifi`, or of SSL_CERT_FILE or
    SSL_CERT_DIR.
    """
    import httpx

    return httpx.create_ssl_context()


class _Pinned(httpcore.NetworkBackend):
    """Connects to addresses that may be reached, by whatever name it is asked to."""

    def __init__(
        self, target: WebhookTarget, allowed: Sequence[Network], resolve: Resolve, timeout_s: float
    ) -> None:
        self._addresses = target.reachable(allowed, resolve)
        # The clock starts once the name is resolved, for which there is no timeout of ours.
        self._deadline = time.monotonic() + timeout_s

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """The first of the addresses that answers."""
        del host, timeout  # the name was resolved already, and there is one deadline for all
        *others, last = self._addresses
        for address in others:
            try:
                return self._connect(str(address), port, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(str(last), port, local_address, socket_options)

    def _connect(self, address: str, port: int, *options: Any) -> httpcore.NetworkStream:
        stream = httpcore.SyncBackend().connect_tcp(address, port, _left(self._deadline), *options)
        return _Bounded(stream, self._deadline)


class _Bounded(httpcore.NetworkStream):
    """Connection with a deadline and a limit of bytes: a receiver can hold it no longer, neither
    drop by drop nor in floods.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline, self._read = stream, deadline, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read within the deadline."""
        del timeout
        found = self._stream.read(max_bytes, _left(self._deadline))
        self._read += len(found)
        if self._read > MOST_BYTES:
            raise _TooLargeError
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write within the deadline."""
        del timeout
        self._stream.write(buffer, _left(self._deadline))

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Start TLS within the deadline."""
        del timeout
        return _Bounded(
            self._stream.start_tls(ssl_context, server_hostname, _left(self._deadline)), self._deadline
        )

    def get_extra_info(self, info: str) -> Any:
        """The stream's information under this name."""
        return self._stream.get_extra_info(info)


def _left(deadline: float) -> float:
    """Seconds until then; raises TimeoutError when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
