"""Content of `/queue`, by key."""

from typing import Any

import httpx

from fedcore.platform.store import Database, groups, workers
from tests.builders.claims import claim, claimant, commit, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.builders.transactions import write


def _seen(rows: Database, name: str, **about: Any) -> None:
    given: dict[str, Any] = {
        "host": "here",
        "pid": 7,
        "queues": ["default"],
        "device": "cpu",
        "run_id": None,
        "memory_bytes": 8 * 10**9,
    }
    write(rows, workers.seen, name, **(given | about))


def test_queued_and_running_runs_are_shown_with_their_worker(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    first = submit_over_http(http, {**TINY, "name": "under way"})
    held = claim(rows)
    commit(rows, held, [report(1)])
    _seen(rows, "worker-1", run_id=held.run_id)
    _seen(rows, "worker-2", device="cuda:0")
    submit_over_http(http, {**TINY, "name": "comes next", "seeds": [0, 1]})
    submit_over_http(http, {**TINY, "name": "has no worker", "execution": {"queue": "gpu"}})
    page = browser.get("/queue").text
    assert f'href="/experiments/{first["id"]}"' in page
    assert '<progress max="3" value="1"' in page
    assert (
        page.index("Queue default")
        < page.index("comes next")
        < page.index("Queue gpu")
        < page.index("has no worker")
    )
    assert "no worker currently serves the queue &#39;gpu&#39;" in page
    assert page.index(">busy<") < page.index("worker-2") < page.index(">idle<")
    assert "cuda:0" in page
    assert "8 GB" in page


def test_runs_of_others_are_counted_and_not_named(
    ann: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    _seen(rows, "worker-1")
    submit_over_http(http, {**TINY, "name": "secret plan"})
    claim(rows)
    submit_over_http(http, {**TINY, "name": "secret sequel"})
    submit_over_http(ann, {**TINY, "name": "my own"})
    page = ann.get("/queue").text
    assert "secret" not in page
    assert "another owner" in page
    assert "1 run of other owners" in page
    assert "my own" in page


def test_groups_are_shown_with_the_shards_of_their_workers(
    browser: httpx.Client, ann: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    submit_over_http(http, {**TINY, "name": "divided", "execution": {"shards": 4}})
    held = claim(rows, "worker-1")
    write(rows, groups.announce, held, "127.0.0.1:1", 3)
    write(rows, groups.join, claimant("worker-2"), 60.0)
    write(rows, groups.record_shards, held, {"worker-1": 3, "worker-2": 1})
    _seen(rows, "worker-1", run_id=held.run_id)
    _seen(rows, "worker-2")
    assert http.get("/v1/queue").json()["groups"] == [
        {
            "run_id": held.run_id,
            "queue": "default",
            "shards": 4,
            "leader": {"worker": "worker-1", "shards": 3},
            "members": [{"worker": "worker-2", "shards": 1}],
        }
    ]
    page = browser.get("/queue").text
    found = page[page.index("Table of groups") : page.index("Table of workers")]
    assert found.index("divided") < found.index("worker-1") < found.index("3 of the last round")
    assert found.index("worker-2") < found.index("1 of the last round")
    assert "trains shards for another worker" in page
    assert ">idle<" not in page
    assert ann.get("/v1/queue").json()["groups"][0]["run_id"] is None
    assert "divided" not in ann.get("/queue").text


def test_an_empty_service_says_so(browser: httpx.Client) -> None:
    page = browser.get("/queue").text
    assert "No active workers" in page
    assert "The queues are empty" in page


def test_a_part_of_the_page_asks_for_itself(browser: httpx.Client) -> None:
    page = browser.get("/queue", headers={"HX-Request": "true"})
    assert page.status_code == 200
    assert 'hx-select="#live"' in page.text
