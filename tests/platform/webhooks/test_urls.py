"""No address that is not public is reached, however it is written, unless the operator allows its
network.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import WebhookUrlError
from fedcore.platform.webhooks.urls import WebhookTarget, refusal, resolve

FORBIDDEN = {
    "unspecified": ("0.0.0.0", "0.1.2.3", "::"),
    "loopback": ("127.0.0.1", "127.255.255.254", "::1"),
    "private": (
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "fd00:ec2::254",
        "fc00::1",
        "fec0::1",
    ),
    "shared": ("100.64.0.1", "100.100.100.200"),
    "link-local": ("169.254.169.254", "169.254.170.2", "fe80::1"),
    "metadata": ("168.63.129.16",),
    "in another form": (
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001::1",
    ),
    "documentation": (
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
    ),
    "multicast": ("224.0.0.1", "239.255.255.255", "ff02::1"),
    "reserved": ("240.0.0.1", "255.255.255.255", "4000::1", "1::1"),
}
PUBLIC = (
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "168.63.129.17",
    "2606:4700:4700::1111",
    "2a00:1450::1",
)


@pytest.mark.parametrize(
    ("reason", "text"), [(reason, text) for reason, texts in FORBIDDEN.items() for text in texts]
)
def test_address_that_is_not_public_is_refused_by_its_kind(reason: str, text: str) -> None:
    assert reason in str(refusal(ip_address(text), ()))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_address_may_be_reached(text: str) -> None:
    assert refusal(ip_address(text), ()) is None


@given(
    st.one_of(
        st.ip_addresses(v=4),
        st.ip_addresses(v=6),
        st.integers(0x2000 << 112, (0x4000 << 112) - 1).map(IPv6Address),
    )
)
def test_reachable_addresses_are_global_and_of_one_machine_by_the_standard_library_too(
    address: IPv4Address | IPv6Address,
) -> None:
    if refusal(address, ()) is None:
        assert address.is_global
        assert not address.is_multicast
        if isinstance(address, IPv6Address):
            assert (address.ipv4_mapped, address.sixtofour, address.teredo) == (None, None, None)


def test_network_that_the_operator_allows_may_be_reached_and_nothing_beside_it() -> None:
    allowed = (ip_network("127.0.0.0/8"), ip_network("fd00::/16"))
    assert [refusal(ip_address(text), allowed) for text in ("127.0.0.1", "fd00::7")] == [None, None]
    assert all(
        refusal(ip_address(text), allowed) for text in ("::1", "::ffff:127.0.0.1", "10.0.0.1", "fd01::1")
    )


# URLs are taken apart once, checked whole, and never repeated in an error.

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://a.example/x?y=1", WebhookTarget("https", "a.example", 443, "/x?y=1"), "a.example"),
        ("HTTPS://A.Example:443", WebhookTarget("https", "a.example", 443, "/"), "a.example"),
        ("http://a.example:8080/", WebhookTarget("http", "a.example", 8080, "/"), "a.example:8080"),
        (
            "https://[2606:4700::1]:444/",
            WebhookTarget("https", "2606:4700::1", 444, "/"),
            "[2606:4700::1]:444",
        ),
    ],
)
def test_a_url_is_taken_apart(url: str, target: WebhookTarget, authority: str) -> None:
    assert WebhookTarget.parse(url) == target
    assert target.authority == authority


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://a.example/hunter2", "https://host/path"),
        ("file:///etc/hunter2", "https://host/path"),
        ("https:///hunter2", "https://host/path"),
        ("hunter2", "https://host/path"),
        ("https://ann:hunter2@a.example/", "user or a password"),
        ("https://hunter2@a.example/", "user or a password"),
        ("https://a.example/#hunter2", "fragment"),
        ("https://a.example:0/hunter2", "port"),
        ("https://a.example:99999/hunter2", "port"),
        ("https://a.example:x/hunter2", "URL"),
        ("https://a.example/\nhunter2: 1", "printable"),
        ("https://a.example/ hunter2", "printable"),
        ("https://ä.example/hunter2", "printable"),
        ("https://a.example/hunter2" + "x" * 2_000, "2,000"),
        ("https://[::1/hunter2", "URL"),
    ],
)
def test_invalid_url_is_refused_and_not_repeated(url: str, told: str) -> None:
    with pytest.raises(WebhookUrlError, match=told) as refused:
        WebhookTarget.parse(url)
    assert SECRET not in str(refused.value)


def test_only_addresses_that_may_be_reached_are_left_of_a_name() -> None:
    target = WebhookTarget.parse("https://a.example/")
    mixed = [ip_address(text) for text in ("10.0.0.7", "8.8.8.8", "::1")]
    assert target.reachable([], lambda _host, _port: mixed) == [ip_address("8.8.8.8")]
    assert target.reachable([ip_network("::1")], lambda _host, _port: mixed) == mixed[1:]


def test_plain_http_reaches_the_networks_that_are_allowed_and_no_others() -> None:
    target = WebhookTarget.parse("http://a.example/")
    mixed = [ip_address(text) for text in ("8.8.8.8", "10.0.0.7")]
    assert target.reachable([ip_network("10.0.0.0/8")], lambda _host, _port: mixed) == mixed[1:]
    with pytest.raises(WebhookUrlError, match=r"\(private, public, which needs https://\)"):
        target.reachable([], lambda _host, _port: mixed)


def test_a_name_without_any_is_refused_by_what_they_are_and_not_by_which() -> None:
    target = WebhookTarget.parse("https://a.example/")
    with pytest.raises(
        WebhookUrlError, match=r"a\.example \(link-local, private\).*FEDQ_WEBHOOK_NETWORKS"
    ) as refused:
        target.reachable([], lambda _host, _port: [ip_address("10.0.0.7"), ip_address("169.254.169.254")])
    assert "10.0.0.7" not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_however_loopback_is_written_it_is_not_reached(host: str) -> None:
    with pytest.raises(WebhookUrlError, match=r"may not reach|cannot resolve the host|must be a URL"):
        WebhookTarget.parse(f"https://{host}/").reachable([], resolve)


def test_a_name_that_nobody_knows_is_refused() -> None:
    def unknown(_host: str, _port: int) -> list[object]:
        raise OSError

    with pytest.raises(WebhookUrlError, match="cannot resolve the host"):
        WebhookTarget.parse("https://nowhere.invalid/").reachable([], unknown)  # type: ignore[arg-type]
