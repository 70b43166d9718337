"""Which addresses webhooks may reach: public ones, and those in networks that the operator allows.

The networks are those of IANA's registries of special-purpose addresses (RFC 6890 and what followed), written out: what Python's
`ipaddress` takes for global depends on its version, and what embeds an IPv4 address in an IPv6 one it takes for global by its outside.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED: dict[str, tuple[str, ...]] = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared by a provider's customers": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    # Not in the registries: Azure answers there with what is the machine's own, at an address that looks public.
    "a cloud's metadata": ("168.63.129.16/32",),
    "an IPv4 address in another form": ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
    "for protocols, tests or documentation": (
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
    ),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4",),
}
REFUSED: tuple[tuple[Network, str], ...] = tuple((ip_network(text), reason) for reason, texts in _REFUSED.items() for text in texts)
_PUBLIC = (ip_network("0.0.0.0/0"), ip_network("2000::/3"))


def refusal(address: Address, allowed: Sequence[Network]) -> str | None:
    """What `address` is, where that keeps webhooks from it; None where they may reach it.

    A network in `allowed` opens all that is in it.
    """
    if any(address in network for network in allowed):
        return None
    reason = next((reason for network, reason in REFUSED if address in network), None)
    return reason or (None if any(address in network for network in _PUBLIC) else "reserved")
