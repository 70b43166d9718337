"""Content of `/keys` and `/audit`, by key."""

import html
import json
import re

import httpx

from api.keys.pages import PAGE
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY

SOON = "2099-01-01T12:00:00Z"


def _make(http: httpx.Client, **terms: object) -> dict[str, str]:
    answer = http.post("/v1/keys", json={"owner": "bob", **terms})
    assert answer.status_code == 201, answer.text
    made: dict[str, str] = answer.json()
    return made


def test_everybody_sees_their_own_key_and_nobody_elses(ann: httpx.Client, http: httpx.Client) -> None:
    _make(http, name="the pipeline of bob")
    page = ann.get("/keys").text
    assert "Your key" in page
    assert "no limit" in page
    assert "bob" not in page
    assert "Create key" not in page
    assert "keys.js" not in page
    assert ann.get("/audit").status_code == 403


def test_administrators_see_all_keys_with_state_and_quotas(browser: httpx.Client, http: httpx.Client) -> None:
    limited = _make(http, name="limited", max_running_runs=2, max_stored_bytes=5_000_000, expires_at=SOON)
    ended = _make(http, name="ended")
    http.post(f"/v1/keys/{ended['id']}/revoke")
    page = browser.get("/keys").text
    rows = dict(re.findall(r'<tr data-key="(\w+)"(.*?)</tr>', page, re.DOTALL))
    assert "running runs: 2" in rows[limited["id"]]
    assert "uploads: 5 MB" in rows[limited["id"]]
    assert ">valid<" in rows[limited["id"]]
    assert ">revoked<" in rows[ended["id"]]
    assert "data-action" not in rows[ended["id"]]
    assert limited["key"] not in page
    (terms,) = re.findall(r'data-terms="([^"]*)"', rows[limited["id"]])
    kept = json.loads(html.unescape(terms))
    assert (kept["scope"], kept["name"], kept["expires_at"], kept["max_running_runs"]) == (
        "submit",
        "limited",
        SOON,
        2,
    )
    # What the form holds can be sent back as it is.
    assert http.patch(f"/v1/keys/{limited['id']}", json=kept).status_code == 200


def test_the_key_in_use_cannot_be_revoked_by_mistake(browser: httpx.Client, http: httpx.Client) -> None:
    own = http.get("/v1/me").json()["key"]["id"]
    (row,) = re.findall(rf'<tr data-key="{own}".*?</tr>', browser.get("/keys").text, re.DOTALL)
    assert "current key" in row
    assert 'data-action="revoke"' not in row


def test_keys_come_in_pages(browser: httpx.Client, http: httpx.Client) -> None:
    for number in range(PAGE + 1):
        _make(http, name=f"key {number}.")
    first = browser.get("/keys").text
    (following,) = re.findall(r'href="(\?cursor=[^"]+)" rel="next"', first)
    second = browser.get(f"/keys{html.unescape(following)}").text
    assert f"key {PAGE}." in first
    assert "key 0." in second
    assert f"key {PAGE}." not in second


def test_the_audit_log_is_read_and_filtered(
    browser: httpx.Client, http: httpx.Client, ann: httpx.Client
) -> None:
    mine, hers = submit_over_http(http), submit_over_http(ann, {**TINY, "name": "hers"})
    everything = browser.get("/audit").text
    assert everything.index(hers["id"]) < everything.index(mine["id"])
    assert "POST /v1/experiments" in everything
    of_ann = browser.get("/audit", params={"owner": "ann", "target": ""}).text
    assert hers["id"] in of_ann
    assert mine["id"] not in of_ann
    assert mine["id"] in browser.get("/audit", params={"target": mine["id"]}).text
    assert "No entries match the filter" in browser.get("/audit", params={"owner": "nobody"}).text
