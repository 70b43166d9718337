"""The list of experiments: narrowed, paged, live."""

import re
from datetime import UTC, datetime, timedelta

import httpx

from fedcore.platform.store import Database
from tests.builders.claims import claim, commit, end_run, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.polling import eventually

FRAGMENT = {"HX-Request": "true"}


def listed(page: httpx.Response) -> list[str]:
    assert page.status_code == 200, page.text
    return re.findall(r'<tr id="(exp_\w+)"', page.text)


def test_the_list_is_narrowed_by_each_field_and_by_all_together(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    first = submit_over_http(http, TINY | {"name": "FedProx, 100 %", "tags": ["a b"]})["id"]
    held = claim(rows)
    end_run(rows, commit(rows, held, [report(1), report(2), report(3)]))
    second = submit_over_http(http, TINY | {"name": "fedavg", "tags": ["a b", "c"]})["id"]
    today = datetime.now(UTC).date()
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({}, [second, first]),
        ({"search": "FED"}, [second, first]),
        ({"search": "prox"}, [first]),
        ({"search": "%"}, [first]),
        ({"search": "_"}, []),
        ({"status": "succeeded"}, [first]),
        ({"status": "queued", "tag": "a b"}, [second]),
        ({"tag": "c"}, [second]),
        ({"owner": "local"}, [second, first]),
        ({"owner": "ann"}, []),
        ({"since": str(today - timedelta(days=1)), "until": str(today + timedelta(days=1))}, [second, first]),
        ({"until": str(today - timedelta(days=2))}, []),
        ({"since": str(today + timedelta(days=2))}, []),
        ({"since": "0001-01-01"}, [second, first]),
        ({"since": "1969-12-31"}, [second, first]),
        ({"until": "1969-12-31"}, []),
        ({"since": "9999-12-31"}, []),
        ({"search": "", "status": "", "tag": "", "owner": "", "since": "", "until": ""}, [second, first]),
    ]
    for asked, expected in cases:
        assert listed(browser.get("/", params=asked)) == expected, asked


def test_senseless_filters_of_the_list_are_told(browser: httpx.Client) -> None:
    for name, value in {"status": "done", "since": "yesterday", "search": "a\0b"}.items():
        answer = browser.get("/", params={name: value})
        assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
        assert f"?{name}" in answer.text


def test_experiments_of_others_are_not_listed_whoever_is_asked_for(
    ann: httpx.Client, http: httpx.Client
) -> None:
    submit_over_http(http)
    for owner in ("", "local", "ann"):
        assert listed(ann.get("/", params={"owner": owner})) == []
    assert 'name="owner"' not in ann.get("/").text


def test_pages_follow_one_another_and_keep_what_was_asked_for(
    browser: httpx.Client, http: httpx.Client
) -> None:
    made = [
        submit_over_http(http, TINY | {"name": f"number {number}", "tags": ["of many"]})["id"]
        for number in range(55)
    ]
    submit_over_http(http)
    first = browser.get("/", params={"tag": "of many"})
    (following,) = re.findall(r'href="(\?[^"]+)" rel="next"', first.text)
    second = browser.get("/" + following.replace("&amp;", "&"))
    assert listed(first) + listed(second) == made[::-1]
    assert 'rel="next"' not in second.text


def test_a_part_is_sent_when_it_has_changed(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    submit_over_http(http)

    def asked(seen: str) -> httpx.Response:
        return browser.get("/", params={"seen": seen}, headers=FRAGMENT)

    def seen(page: httpx.Response) -> str:
        (found,) = re.findall(r'name="seen" value="(\w+)"', page.text)
        return found

    first = browser.get("/")
    assert "<html" in first.text
    assert asked(seen(first)).status_code == 204
    commit(rows, claim(rows), [report(1)])
    # Those that ask again and again are told the same for a moment.
    eventually(lambda: asked(seen(first)).status_code == 200)
    second = asked(seen(first))
    assert "<html" not in second.text
    assert "33 %" in second.text
    assert asked(seen(second)).status_code == 204
