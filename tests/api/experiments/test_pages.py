"""The page of one experiment, and its parts."""

import html
import re

import httpx
import pytest
import yaml
from sqlalchemy import update

from api.experiments.pages import UNDER_WAY, actions
from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import Database
from fedcore.platform.store.tables import ExperimentRecord
from fedq.results.presentation import side, verdict
from fedq.results.tables import PARQUET
from fedq.schemas import Claims
from tests.api.conftest import browsing
from tests.api.histories import MADE_WITH, TINY, TWO_ARMS, commit, finish, submit
from tests.api.histories import write as write_runs
from tests.api.results.test_claims import PRESET, at_rest
from tests.api.search.test_routes import NINE
from tests.documents import Document
from tests.platform.store.acts import claim, fail, report
from tests.platform.store.test_search import drain

FRAGMENT = {"HX-Request": "true"}
ACTIONS = ("pause", "resume", "cancel", "retry")
EVIL = '"><script>alert(1)</script>'


def parts_of(page: str) -> list[str]:
    return re.findall(r'hx-get="(/experiments/[^"]+)"', page)


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_page_and_all_its_parts_are_there_and_hold_no_script(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit(http, NINE | {"name": EVIL, "description": EVIL})["id"]
    drain(rows)
    page = browser.get(f"/experiments/{id}")
    assert page.status_code == 200
    parts = parts_of(page.text)
    assert [part.rpartition("/")[2] for part in parts] == ["standing", "runs", "search"]
    for text in (page.text, *(browser.get(part).text for part in parts)):
        assert "<script>alert" not in text
        assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=", text)
    found = text_of(browser.get(parts[2]).text)
    assert "Rung at round 1" in found
    assert "lr=0.04 1.5 promoted 1 of 9" in found


def test_the_standing_is_sent_when_it_has_changed(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit(http, TWO_ARMS)["id"]
    place = f"/experiments/{id}/standing"

    def seen(text: str) -> str:
        return re.search(r'id="seen" name="seen" value="(\w+)"', text)[1]  # type: ignore[index]

    first = browser.get(place)
    assert "0 of 18 rounds" in text_of(first.text)
    assert browser.get(place, params={"seen": seen(first.text)}).status_code == 204
    held = claim(rows)
    commit(rows, held, [report(1)])
    second = browser.get(place, params={"seen": seen(first.text)})
    assert "1 of 18 rounds" in text_of(second.text)
    assert "1 running" in text_of(second.text)
    http.patch(f"/v1/experiments/{id}", json={"name": "renamed"})
    assert "renamed" in browser.get(place, params={"seen": seen(second.text)}).text


def test_what_is_offered_is_what_the_service_takes(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    """Each button that is there works, and of those that are not there each would be refused, or do
    nothing.
    """

    def offered(id: str) -> set[str]:
        return set(re.findall(r'data-act="(\w+)"', browser.get(f"/experiments/{id}/standing").text)) - {
            "edit",
            "delete",
            "star",
            "archive",
        }

    id = submit(http)["id"]
    for step, expected in [
        ("", {"pause", "cancel", "extend"}),
        ("pause", {"resume", "cancel", "extend"}),
        ("resume", {"pause", "cancel", "extend"}),
        ("cancel", {"retry"}),
    ]:
        if step:
            assert http.post(f"/v1/experiments/{id}/{step}").status_code == 200
        assert offered(id) == expected
    assert http.post(f"/v1/experiments/{id}/retry").status_code == 200
    held = claim(rows)
    finish(rows, commit(rows, held, [report(1), report(2), report(3)]))
    assert offered(id) == {"extend"}
    assert {http.post(f"/v1/experiments/{id}/{name}").status_code for name in ACTIONS} == {409}
    assert http.post(f"/v1/experiments/{id}/extend", json={"rounds": 4}).status_code == 200
    searched = submit(http, NINE)["id"]
    assert offered(searched) == {"pause", "cancel"}
    assert http.post(f"/v1/experiments/{searched}/extend", json={"seeds": [99]}).status_code == 409


def test_nothing_is_offered_of_what_was_carried_out_elsewhere(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit(http)["id"]
    http.post(f"/v1/experiments/{id}/cancel")
    with rows.transaction() as session:
        session.execute(update(ExperimentRecord).values(provenance={"imported": {}}))
    assert set(re.findall(r'data-act="(\w+)"', browser.get(f"/experiments/{id}/standing").text)) == {
        "edit",
        "delete",
        "star",
        "archive",
    }
    assert http.post(f"/v1/experiments/{id}/retry").status_code == 409


@pytest.mark.parametrize("status", Status)
def test_what_has_ended_is_neither_paused_nor_cancelled(status: Status) -> None:
    offered = set(actions({status: 1}))
    assert ("cancel" in offered) is (status not in ENDED)
    assert ("pause" in offered) is (status in UNDER_WAY)


def test_readers_are_offered_nothing_to_change(app: object, http: httpx.Client, settings: object) -> None:
    made = http.post("/v1/keys", json={"owner": "local", "scope": "read"}).json()["key"]
    id = submit(http)["id"]
    with browsing(app, made) as reader:  # type: ignore[arg-type]
        page = reader.get(f"/experiments/{id}").text
    assert "data-act" not in page
    assert '<dialog id="confirm-delete"' not in page


def test_what_belongs_to_others_is_not_there(ann: httpx.Client, http: httpx.Client) -> None:
    id = submit(http)["id"]
    (run,) = http.get(f"/v1/experiments/{id}/runs").json()["items"]
    places = [
        f"/experiments/{id}{part}"
        for part in (
            "",
            "/standing",
            "/runs",
            "/search",
            "/claims",
            "/download/results.json",
            "/download/summary.csv",
            "/download/specification.yaml",
        )
    ]
    for place in (*places, f"/runs/{run['id']}"):
        answer = ann.get(place)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), (
            place
        )
        assert "tiny" not in answer.text


def test_runs_come_a_page_at_a_time(browser: httpx.Client, http: httpx.Client) -> None:
    id = submit(http, TINY | {"seeds": list(range(130))})["id"]
    first = browser.get(f"/experiments/{id}/runs").text
    (following,) = re.findall(r'hx-get="([^"]+cursor=[^"]+)"', first)
    second = browser.get(following).text
    ids = [re.findall(r'<tr id="(run_\w+)"', page) for page in (first, second)]
    assert list(map(len, ids)) == [100, 30]
    assert ids[0] + ids[1] == [run["id"] for run in http.get(f"/v1/experiments/{id}/runs").json()["items"]]


def test_a_run_tells_what_happened_to_it(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    id = submit(http)["id"]
    http.post(f"/v1/experiments/{id}/pause")
    http.post(f"/v1/experiments/{id}/resume")
    held = claim(rows)
    fail(rows, held, f"ValueError: {EVIL}")
    (run,) = http.get(f"/v1/experiments/{id}/runs").json()["items"]
    part = browser.get(f"/runs/{run['id']}", headers=FRAGMENT).text
    whole = browser.get(f"/runs/{run['id']}").text
    assert "<html" not in part
    assert "<html" in whole
    # In a dialog, there are no scripts to fill these.
    assert f'href="/runs/{run["id"]}">Log and resource use' in part
    assert f'data-run="{run["id"]}"' in whole
    for page in (part, whole):
        told = text_of(page)
        assert "ValueError:" in told
        assert "<script>alert" not in page
        order = [
            told.index(one)
            for one in (
                "queued",
                "experiment paused by local",
                "experiment resumed by local",
                "started by a worker",
            )
        ]
        assert order == sorted(order)


def test_an_error_of_several_runs_is_printed_once(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit(http, TWO_ARMS)["id"]
    place = f"/experiments/{id}/runs"
    for error in ("ValueError: one", "KeyError: two", "ValueError: one", "KeyError: two", "OSError: three"):
        fail(rows, claim(rows), error)
    told = text_of(browser.get(place).text)
    assert [told.count(text) for text in ("ValueError: one", "KeyError: two", "OSError: three")] == [0, 1, 1]
    # The page shows the one that the experiment has, too.
    assert text_of(browser.get(f"/experiments/{id}").text).count("ValueError: one") == 1
    assert "Error 1 (2 runs): KeyError: two" in told
    assert "2 runs failed with the error above." in told
    assert [told.count(text) for text in (" error 1 ", " the error above ")] == [2, 2]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([0, 1], "Both runs failed with the error above."),
        ([0, 1, 2], "All 3 runs failed with the error above."),
    ],
)
def test_one_error_of_all_runs_is_told_of_all(
    browser: httpx.Client, http: httpx.Client, rows: Database, seeds: list[int], words: str
) -> None:
    id = submit(http, TINY | {"seeds": seeds})["id"]
    for _ in seeds:
        fail(rows, claim(rows), "ValueError: one")
    assert words in text_of(browser.get(f"/experiments/{id}/runs").text)
    page = text_of(browser.get(f"/experiments/{id}").text)
    assert "This experiment failed before it completed a round." in page


def test_a_run_that_diverged_says_so(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    id = submit(http)["id"]
    held = claim(rows)
    place = "client 3, local step 2 of round 1"
    made = {**MADE_WITH, "divergence": place}
    finish(rows, commit(rows, held, [report(1)]), diverged_round=1, provenance=made)
    told = text_of(browser.get(f"/runs/{held.run_id}").text)
    of_runs = text_of(browser.get(f"/experiments/{id}/runs").text)
    assert f"diverged in round 1: {place}" in of_runs
    assert f"not finite; first {place}" in told
    assert f"/v1/runs/{held.run_id}/model" in browser.get(f"/runs/{held.run_id}").text


def test_claims_are_shown_with_their_verdicts(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit(http, {"preset": PRESET})["id"]
    write_runs(rows, at_rest, 3)
    page = browser.get(f"/experiments/{id}").text
    (place,) = [part for part in parts_of(page) if part.endswith("/claims")]
    told = text_of(browser.get(place).text)
    assert PRESET in told
    for made in Claims.model_validate(http.get(f"/v1/experiments/{id}/claims").json()).claims:
        for words in (f"{verdict(made)} {made.says}", *map(side, made.comparisons)):
            assert words in html.unescape(told)
    plain = submit(http)["id"]
    assert not [
        part
        for part in parts_of(browser.get(f"/experiments/{plain}").text)
        if part.endswith(("/claims", "/search"))
    ]


def test_files_hold_what_v1_tells(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    made: Document = submit(http)
    held = claim(rows)
    finish(rows, commit(rows, held, [report(1), report(2), report(3)]))
    place = f"/experiments/{made['id']}/download"
    specification = browser.get(f"{place}/specification.yaml")
    assert specification.headers["content-disposition"] == f'attachment; filename="{made["id"]}.yaml"'
    assert yaml.safe_load(specification.text) == made["specification"]
    results = f"/v1/experiments/{made['id']}/results"
    assert browser.get(f"{place}/results.json").json() == http.get(results).json()
    for table in ("summary", "curves"):
        tables = [browser.get(f"{place}/{table}.{form}") for form in ("csv", "parquet")]
        assert (
            tables[0].content
            == http.get(results, headers={"Accept": "text/csv"}, params={"table": table}).content
        )
        parquet = http.get(results, headers={"Accept": PARQUET}, params={"table": table})
        assert tables[1].content == parquet.content
        assert tables[1].headers["content-disposition"].endswith(f'-{table}.parquet"')
    assert browser.get(f"{place}/nothing.csv").status_code == 422
