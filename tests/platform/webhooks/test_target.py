"""URLs are taken apart once, checked whole, and never repeated in an error."""

from ipaddress import ip_address, ip_network

import pytest

from fedcore.errors import WebhookUrlError
from fedcore.platform.webhooks.urls import WebhookTarget, resolve

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
def test_what_is_no_url_to_be_sent_to_is_refused_and_not_repeated(url: str, told: str) -> None:
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
