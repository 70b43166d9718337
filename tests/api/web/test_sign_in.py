"""A browser signs in, is who its key says, and is believed only where its own pages ask."""

from itertools import product
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.builders.specifications import TINY
from tests.support.asgi import BASE_URL

FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": f"{BASE_URL}.evil.example"},
    {"Origin": f"{BASE_URL}:81"},
    {},
]
"""Headers of requests that foreign pages make a browser send, or of browsers that send none."""


def without_site(client: httpx.Client, headers: dict[str, str]) -> dict[str, str]:
    client.headers.pop("Sec-Fetch-Site", None)
    return headers


def test_strangers_are_asked_who_they_are_and_then_get_where_they_wanted(
    stranger: httpx.Client, admin_key: str
) -> None:
    asked = stranger.get("/?tag=a%26b&cursor=")
    assert asked.status_code == 303
    address = urlsplit(asked.headers["location"])
    assert address.path == "/sign-in"
    (wanted,) = parse_qs(address.query)["next"]
    form = stranger.get(asked.headers["location"])
    assert form.status_code == 200
    assert 'value="/?tag=a%26b&amp;cursor="' in form.text
    taken = stranger.post("/sign-in", data={"key": f" {admin_key}\n", "next": wanted})
    assert (taken.status_code, taken.headers["location"]) == (303, "/?tag=a%26b&cursor=")
    assert stranger.get("/").status_code == 200


def test_the_cookie_is_shown_to_no_script_and_sent_to_no_other_place(
    stranger: httpx.Client, admin_key: str
) -> None:
    cookie = stranger.post("/sign-in", data={"key": admin_key}).headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie
    assert "secure" not in cookie
    stranger.base_url = httpx.URL("https://fedq.example:8443")
    sealed = stranger.post("/sign-in", data={"key": admin_key}).headers["set-cookie"].lower()
    assert "secure" in {part.strip() for part in sealed.split(";")}
    assert sealed.startswith("fedq-8443=")


def test_two_stacks_on_one_host_do_not_know_each_others_cookies(
    stranger: httpx.Client, admin_key: str
) -> None:
    stranger.base_url = httpx.URL("http://127.0.0.1:8001")
    stranger.post("/sign-in", data={"key": admin_key})
    assert stranger.get("/v1/me").status_code == 200
    stranger.base_url = httpx.URL("http://127.0.0.1:8002")
    assert stranger.get("/v1/me").status_code == 401


def test_malformed_key_is_refused_with_the_form_again(stranger: httpx.Client) -> None:
    for key in ("", "guess", f"fq_{'0' * 26}_{'0' * 64}"):
        refused = stranger.post("/sign-in", data={"key": key, "next": "/?tag=x"})
        assert refused.status_code == 401
        assert 'role="alert"' in refused.text
        assert 'value="/?tag=x"' in refused.text
        assert "set-cookie" not in refused.headers
        assert "0" * 64 not in refused.text


def test_nobody_is_led_elsewhere(stranger: httpx.Client, admin_key: str) -> None:
    for wanted in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "evil",
        "javascript:alert(1)",
        "/\t/evil",
        "",
    ):
        assert 'name="next" value="/"' in stranger.get("/sign-in", params={"next": wanted}).text
        assert stranger.post("/sign-in", data={"key": admin_key, "next": wanted}).headers["location"] == "/"


def test_a_form_without_end_is_not_read(stranger: httpx.Client) -> None:
    assert stranger.post("/sign-in", data={"key": "x" * 9_000}).status_code == 413


def test_signing_out_forgets_the_key(browser: httpx.Client) -> None:
    assert browser.get("/v1/me").status_code == 200
    assert browser.post("/sign-out").headers["location"] == "/sign-in"
    assert browser.get("/v1/me").status_code == 401


def test_a_revoked_key_leads_back_to_the_form(browser: httpx.Client) -> None:
    key = browser.get("/v1/me").json()["key"]["id"]
    assert browser.post(f"/v1/keys/{key}/revoke").status_code == 200
    assert browser.get("/").headers["location"] == "/sign-in"
    part = browser.get("/", headers={"HX-Request": "true", "HX-Current-URL": f"{BASE_URL}/?tag=x"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in?next=/%3Ftag%3Dx")


def test_a_browsers_own_pages_do_whatever_its_key_may(ann: httpx.Client) -> None:
    made = ann.post("/v1/experiments", json=TINY)
    assert (made.status_code, made.json()["owner"]) == (201, "ann")
    assert ann.get("/v1/keys").status_code == 403
    at_home = without_site(ann, {"Origin": BASE_URL})
    assert ann.delete(f"/v1/experiments/{made.json()['id']}", headers=at_home).status_code == 204


def test_a_foreign_page_cannot_make_a_browser_change_anything(browser: httpx.Client) -> None:
    things = [
        ("POST", "/v1/experiments"),
        ("PATCH", "/v1/experiments/x"),
        ("DELETE", "/v1/experiments/x"),
        ("POST", "/v1/keys"),
    ]
    for headers, (method, path) in product(FOREIGN, things):
        answer = browser.request(method, path, json=TINY, headers=without_site(browser, headers))
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:fedq:problem:forbidden")
    assert browser.get("/v1/experiments").json()["items"] == []


def test_a_foreign_page_signs_nobody_in_or_out(stranger: httpx.Client, admin_key: str) -> None:
    for headers, path in product(FOREIGN, ("/sign-in", "/sign-out")):
        answer = stranger.post(path, data={"key": admin_key}, headers=without_site(stranger, headers))
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_a_header_goes_before_a_cookie(browser: httpx.Client) -> None:
    answer = browser.get("/v1/me", headers={"Authorization": "Bearer guess"})
    assert answer.status_code == 401


def test_the_key_is_in_no_page_and_no_log(
    browser: httpx.Client, admin_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = admin_key.rpartition("_")[2]
    assert secret not in browser.get("/").text
    assert secret not in "".join(capsys.readouterr())
