"""Properties of all pages: security headers, the origin of scripts, and errors."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.app import PAGES as ROUTERS
from api.http.middleware import HEADERS
from api.web import rendering
from api.web.rendering import FOREVER, STATIC, digest_of
from tests.api.conftest import BROWSER
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.asgi import calling

PAGES = [
    route.path
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and "GET" in (route.methods or ()) and "{" not in route.path
]
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'


@pytest.mark.parametrize("path", [*PAGES, "/nowhere"])
def test_pages_run_scripts_of_files_alone_and_load_nothing_from_other_hosts(
    browser: httpx.Client, path: str
) -> None:
    page = browser.get(path)
    assert {name: page.headers[name] for name in HEADERS} == HEADERS | {"Referrer-Policy": "same-origin"}
    assert page.headers["cache-control"] == "no-store"
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == (
        "'none'",
        "'none'",
        "'self'",
    )
    assert "http" not in page.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=|<style|https?://", page.text)
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert all(place.startswith(("/", "?")) and not place.startswith("//") for place in loaded)
    for place in {place for place in loaded if place.startswith("/static/")}:
        answer = browser.get(place)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, FOREVER), place


def test_a_file_is_kept_for_good_under_the_address_of_its_content_alone(browser: httpx.Client) -> None:
    assert browser.get(f"/static/{digest_of(STATIC)}/fedq.css").headers["cache-control"] == FOREVER
    assert browser.get("/static/older/fedq.css").headers["cache-control"] == "no-cache"
    for outside in ("../web/__init__.py", "%2e%2e/__init__.py", "nothing.css", ""):
        assert browser.get(f"/static/{digest_of(STATIC)}/{outside}").status_code == 404


def test_the_address_changes_with_any_file(tmp_path: Path) -> None:
    digests = []
    for name, text in (("a.js", "1"), ("a.js", "2"), ("b.js", "2")):
        (tmp_path / name).write_text(text)
        digests.append(digest_of(tmp_path))
    assert len(set(digests)) == 3


def test_vendored_files_are_as_they_were_published() -> None:
    manifest = json.loads((STATIC / "vendor/manifest.json").read_text())
    listed = {
        f"{name}/{file}": digest
        for name, entry in manifest.items()
        for file, digest in entry["files"].items()
    }
    there = [
        path.relative_to(STATIC / "vendor").as_posix()
        for path in (STATIC / "vendor").rglob("*")
        if path.is_file()
    ]
    assert sorted([*listed, "manifest.json"]) == sorted(there)
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name
    for name, entry in manifest.items():
        assert {"package", "version", "licence", "files"} == entry.keys()
        assert any("LICEN" in file.upper() for file in entry["files"]), f"{name} comes without its licence"


def test_text_of_users_is_no_markup(browser: httpx.Client, http: httpx.Client) -> None:
    submit_over_http(http, TINY | {"name": EVIL})
    page = browser.get("/").text
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "{{ 7 * 7 }}" in page


def test_errors_are_pages_for_people_and_problems_for_programs(browser: httpx.Client) -> None:
    page = browser.get("/nowhere")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Not found: /nowhere" in page.text
    for path, accept in (
        ("/nowhere", "*/*"),
        ("/v1/nowhere", BROWSER["Accept"]),
        ("/v1/experiments/x", BROWSER["Accept"]),
    ):
        problem = browser.get(path, headers={"Accept": accept})
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")
    assert browser.put("/sign-in").headers["allow"] == "GET, POST"


def test_a_page_that_fails_says_so(app: FastAPI) -> None:
    app.add_api_route("/broken", lambda: 1 / 0, include_in_schema=False)
    with calling(app) as client:
        page = client.get("/broken", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "See the log of the service" in page.text
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert "ZeroDivisionError" not in page.text


# Figures as people read them.


@pytest.mark.parametrize(
    ("passed", "text"),
    [(5, "just now"), (61, "1 min ago"), (3_700, "1 h ago"), (200_000, "2 d ago"), (-5, "just now")],
)
def test_moments_are_told_by_their_largest_unit(passed: float, text: str) -> None:
    assert rendering.ago(datetime.now(UTC) - timedelta(seconds=passed)) == text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("set `local.lr` to <1>", "set <code>local.lr</code> to &lt;1&gt;"),
        ("`<b>` and `x`", "<code>&lt;b&gt;</code> and <code>x</code>"),
        ("a ` alone", "a ` alone"),
        ("", ""),
    ],
)
def test_code_in_messages_is_shown_as_code_and_nothing_else_is_markup(text: str, html: str) -> None:
    assert rendering.prose(text) == html


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_900, "1 MB"),
        (1_234_567, "1.23 MB"),
        (5e15, "5e+03 TB"),
    ],
)
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert rendering.size(count) == text
