"""Where a webhook is sent to: a URL that may be asked for, and the addresses behind its name that may be reached."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

import httpx

from fedcore.errors import WebhookUrlError
from fedcore.platform.webhooks.addresses import Address, Network, refusal

MOST_CHARACTERS = 2_000
PORTS = {"https": 443, "http": 80}

Resolve = Callable[[str, int], Sequence[Address]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows."""

    networks: Sequence[Network] = ()
    """May be reached although they are not public."""
    plain: bool = False
    """Whether HTTP without TLS is allowed."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart once: what is checked is what is connected to."""

    scheme: str
    host: str
    """As DNS knows it, or an address."""
    port: int
    path: str
    """With the query."""

    @classmethod
    def parse(cls, text: str, rules: Rules) -> Self:
        """Raises TargetError for what webhooks may not be sent to; the message never repeats the URL, which may hold a secret."""
        if len(text) > MOST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
            raise WebhookUrlError(f"must be a URL of at most {MOST_CHARACTERS:,} printable ASCII characters, without spaces")
        try:
            url = httpx.URL(text)
            host = url.raw_host.decode("ascii")
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise WebhookUrlError("must be a URL, as https://host/path") from error
        _check(url, host, rules)
        port = PORTS[url.scheme] if url.port is None else url.port
        if not 0 < port < 65_536:
            raise WebhookUrlError("the port must be from 1 to 65,535")
        return cls(url.scheme, host, port, url.raw_path.decode("ascii"))

    @property
    def authority(self) -> str:
        """Host and port, as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def reachable(self, rules: Rules, resolve: Resolve) -> Sequence[Address]:
        """The addresses behind the name that webhooks may reach, in order of preference; raises TargetError when there is none."""
        try:
            found = resolve(self.host, self.port)
        except (OSError, UnicodeError) as error:
            raise WebhookUrlError(f"the host {self.host} is not known here") from error
        reasons = {address: refusal(address, rules.networks) for address in found}
        free = [address for address, reason in reasons.items() if reason is None]
        if free:
            return free
        # Not which address: whoever may make a webhook need not learn what names mean inside.
        kinds = ", ".join(sorted({reason for reason in reasons.values() if reason is not None})) or "it has none"
        hint = "the operator allows networks by FEDQ_WEBHOOK_NETWORKS"
        raise WebhookUrlError(f"webhooks may not reach the address of {self.host} ({kinds}); {hint}")


def _check(url: httpx.URL, host: str, rules: Rules) -> None:
    if url.scheme not in PORTS or not host:
        raise WebhookUrlError("must be a URL, as https://host/path")
    if url.scheme == "http" and not rules.plain:
        raise WebhookUrlError("must begin with https://; the operator allows plain HTTP by FEDQ_WEBHOOK_HTTP")
    if url.userinfo:
        raise WebhookUrlError("must not hold a user or a password: what is sent is signed, and so needs none")
    if url.fragment:
        raise WebhookUrlError("must have no fragment, since none is sent")


def resolve(host: str, port: int) -> Sequence[Address]:
    """What the system's resolver says, each address once; raises OSError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A zone (`%eth0`) is part of a link-local address alone.
    return list(dict.fromkeys(ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers))
