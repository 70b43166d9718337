"""URLs that webhooks may be sent to, and the addresses behind them that may be reached.

The networks are listed in IANA's registries of special-purpose addresses (RFC 6890 and what
followed) and written out here: what Python's `ipaddress` takes for global depends on its version,
and what embeds an IPv4 address in an IPv6 one it takes for global by its outside.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

from fedcore.errors import WebhookUrlError
from fedcore.lazy import httpx

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED: dict[str, tuple[str, ...]] = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared by a provider's customers": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    # Not in the registries: Azure answers there with what is the machine's own, at an address that
    # looks public.
    "a cloud's metadata": ("168.63.129.16/32",),
    "an IPv4 address in another form": (
        "::/96",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
    ),
    "for protocols, tests or documentation": (
        *(
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ),
        *("100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
    ),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4",),
}
REFUSED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text), reason) for reason, texts in _REFUSED.items() for text in texts
)
_PUBLIC = (ip_network("0.0.0.0/0"), ip_network("2000::/3"))


def refusal(address: Address, allowed: Sequence[Network], scheme: str = "https") -> str | None:
    """Reason why webhooks may not reach `address` by `scheme`; None where they may.

    A network in `allowed` opens all that is in it, for plain HTTP too.
    """
    if any(address in network for network in allowed):
        return None
    reason = next((reason for network, reason in REFUSED if address in network), None)
    if reason is None and not any(address in network for network in _PUBLIC):
        reason = "reserved"
    return reason or ("public, which needs https://" if scheme == "http" else None)


MOST_CHARACTERS = 2_000
PORTS = {"https": 443, "http": 80}

Resolve = Callable[[str, int], Sequence[Address]]


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A URL, taken apart once: what is checked is what is connected to."""

    scheme: str
    host: str
    """Name, as DNS knows it, or an address."""
    port: int
    path: str
    """Path of the URL, with its query."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises TargetError for what webhooks may not be sent to.

        The message never repeats the URL, which may hold a secret.
        """
        if len(text) > MOST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
            raise WebhookUrlError(
                f"must be a URL of at most {MOST_CHARACTERS:,} printable ASCII characters, without spaces"
            )
        try:
            url = httpx.URL(text)
            host = url.raw_host.decode("ascii")
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise WebhookUrlError("must be a URL, e.g. https://host/path") from error
        _check(url, host)
        port = PORTS[url.scheme] if url.port is None else url.port
        if not 0 < port < 65_536:
            raise WebhookUrlError("the port must be from 1 to 65,535")
        return cls(url.scheme, host, port, url.raw_path.decode("ascii"))

    @property
    def authority(self) -> str:
        """Host and port, as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def reachable(self, allowed: Sequence[Network], resolve: Resolve) -> Sequence[Address]:
        """The addresses behind the name that webhooks may reach, in order of preference: public ones by
        HTTPS, and those in the networks `allowed`.

        Raises TargetError when there is none.
        """
        try:
            found = resolve(self.host, self.port)
        except (OSError, UnicodeError) as error:
            raise WebhookUrlError(f"cannot resolve the host {self.host}") from error
        reasons = {address: refusal(address, allowed, self.scheme) for address in found}
        free = [address for address, reason in reasons.items() if reason is None]
        if free:
            return free
        # Without the address: users who create webhooks must not learn how internal names resolve.
        kinds = (
            ", ".join(sorted({reason for reason in reasons.values() if reason is not None})) or "it has none"
        )
        hint = "the operator allows networks by FEDQ_WEBHOOK_NETWORKS"
        raise WebhookUrlError(f"webhooks may not reach the address of {self.host} ({kinds}); {hint}")


def _check(url: "httpx.URL", host: str) -> None:
    if url.scheme not in PORTS or not host:
        raise WebhookUrlError("must be a URL, e.g. https://host/path")
    if url.userinfo:
        raise WebhookUrlError("must not hold a user or a password: what is sent is signed, and so needs none")
    if url.fragment:
        raise WebhookUrlError("must have no fragment, since none is sent")


def resolve(host: str, port: int) -> Sequence[Address]:
    """Addresses of the system's resolver, each once; raises OSError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A zone (`%eth0`) is part of a link-local address alone.
    return list(dict.fromkeys(ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers))
