"""The page of one experiment, and its parts."""

import html
import re

import httpx
import pytest
import yaml
from fastapi import FastAPI
from sqlalchemy import update

from api.experiments.pages import UNDER_WAY, actions
from fedcore.platform.access import Scope
from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import Database, audit
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.settings import Settings
from fedq.results.presentation import side, verdict
from fedq.results.tables import PARQUET
from fedq.schemas import Claims
from tests.api.conftest import browsing
from tests.api.results.test_claims import PRESET, at_rest
from tests.api.search.test_routes import NINE
from tests.builders.claims import MADE_WITH, claim, commit, end_run, fail, report
from tests.builders.claims import end_runs as write_runs
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.platform.store.test_search import drain
from tests.support.access import key_for

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
    id = submit_over_http(http, NINE | {"name": EVIL, "description": EVIL})["id"]
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
    id = submit_over_http(http, TWO_ARMS)["id"]
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


def test_actions_offered_are_those_the_service_takes(
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

    id = submit_over_http(http)["id"]
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
    end_run(rows, commit(rows, held, [report(1), report(2), report(3)]))
    assert offered(id) == {"extend"}
    assert {http.post(f"/v1/experiments/{id}/{name}").status_code for name in ACTIONS} == {409}
    assert http.post(f"/v1/experiments/{id}/extend", json={"rounds": 4}).status_code == 200
    searched = submit_over_http(http, NINE)["id"]
    assert offered(searched) == {"pause", "cancel"}
    assert http.post(f"/v1/experiments/{searched}/extend", json={"seeds": [99]}).status_code == 409


def test_nothing_is_offered_of_what_was_carried_out_elsewhere(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit_over_http(http)["id"]
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
def test_ended_experiments_are_neither_paused_nor_cancelled(status: Status) -> None:
    offered = set(actions({status: 1}))
    assert ("cancel" in offered) is (status not in ENDED)
    assert ("pause" in offered) is (status in UNDER_WAY)


def test_readers_are_offered_nothing_to_change(app: object, http: httpx.Client, settings: object) -> None:
    made = http.post("/v1/keys", json={"owner": "local", "scope": "read"}).json()["key"]
    id = submit_over_http(http)["id"]
    with browsing(app, made) as reader:  # type: ignore[arg-type]
        page = reader.get(f"/experiments/{id}").text
    assert "data-act" not in page
    assert '<dialog id="confirm-delete"' not in page


def test_experiments_of_others_have_no_page(ann: httpx.Client, http: httpx.Client) -> None:
    id = submit_over_http(http)["id"]
    (run,) = http.get(f"/v1/experiments/{id}/runs").json()["items"]
    places = [
        f"/experiments/{id}{part}"
        for part in (
            "",
            "/standing",
            "/runs",
            "/search",
            "/claims",
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
    id = submit_over_http(http, TINY | {"seeds": list(range(130))})["id"]
    first = browser.get(f"/experiments/{id}/runs").text
    (following,) = re.findall(r'hx-get="([^"]+cursor=[^"]+)"', first)
    second = browser.get(following).text
    ids = [re.findall(r'<tr id="(run_\w+)"', page) for page in (first, second)]
    assert list(map(len, ids)) == [100, 30]
    assert ids[0] + ids[1] == [run["id"] for run in http.get(f"/v1/experiments/{id}/runs").json()["items"]]


def test_a_run_tells_what_happened_to_it(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    id = submit_over_http(http)["id"]
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
    id = submit_over_http(http, TWO_ARMS)["id"]
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
def test_error_shared_by_all_runs_is_told_of_all(
    browser: httpx.Client, http: httpx.Client, rows: Database, seeds: list[int], words: str
) -> None:
    id = submit_over_http(http, TINY | {"seeds": seeds})["id"]
    for _ in seeds:
        fail(rows, claim(rows), "ValueError: one")
    assert words in text_of(browser.get(f"/experiments/{id}/runs").text)
    page = text_of(browser.get(f"/experiments/{id}").text)
    assert "This experiment failed before it completed a round." in page


def test_a_run_that_diverged_says_so(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    id = submit_over_http(http)["id"]
    held = claim(rows)
    place = "client 3, local step 2 of round 1"
    made = {**MADE_WITH, "divergence": place}
    end_run(rows, commit(rows, held, [report(1)]), diverged_round=1, provenance=made)
    told = text_of(browser.get(f"/runs/{held.run_id}").text)
    of_runs = text_of(browser.get(f"/experiments/{id}/runs").text)
    assert f"diverged in round 1: {place}" in of_runs
    assert f"not finite; first {place}" in told
    assert f"/v1/runs/{held.run_id}/model" in browser.get(f"/runs/{held.run_id}").text


def test_claims_are_shown_with_their_verdicts(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit_over_http(http, {"preset": PRESET})["id"]
    write_runs(rows, at_rest, 3)
    page = browser.get(f"/experiments/{id}").text
    (place,) = [part for part in parts_of(page) if part.endswith("/claims")]
    told = text_of(browser.get(place).text)
    assert PRESET in told
    for made in Claims.model_validate(http.get(f"/v1/experiments/{id}/claims").json()).claims:
        for words in (f"{verdict(made)} {made.says}", *map(side, made.comparisons)):
            assert words in html.unescape(told)
    plain = submit_over_http(http)["id"]
    assert not [
        part
        for part in parts_of(browser.get(f"/experiments/{plain}").text)
        if part.endswith(("/claims", "/search"))
    ]


def test_files_hold_what_v1_tells(browser: httpx.Client, http: httpx.Client, rows: Database) -> None:
    made: Document = submit_over_http(http)
    held = claim(rows)
    end_run(rows, commit(rows, held, [report(1), report(2), report(3)]))
    place = f"/experiments/{made['id']}/download"
    specification = browser.get(f"{place}/specification.yaml")
    assert specification.headers["content-disposition"] == f'attachment; filename="{made["id"]}.yaml"'
    assert yaml.safe_load(specification.text) == made["specification"]
    results = f"/v1/experiments/{made['id']}/results"
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


# Notes of experiments and runs, stars and the archive.

MARKDOWN = """# Finding
Works **well**, see [the paper](https://example.org/a).

<script>alert(1)</script> [bad](javascript:alert(1)) ![far](https://example.org/a.png)
"""


def test_notes_are_kept_audited_and_rendered_without_scripts_and_images(
    http: httpx.Client, browser: httpx.Client, rows: Database
) -> None:
    id = submit_over_http(http)["id"]
    run = http.get(f"/v1/experiments/{id}/runs").json()["items"][0]["id"]
    assert (
        http.get(f"/v1/experiments/{id}").json()["notes"],
        http.get(f"/v1/runs/{run}").json()["notes"],
    ) == (
        "",
        "",
    )
    for path, page in ((f"/v1/experiments/{id}", f"/experiments/{id}"), (f"/v1/runs/{run}", f"/runs/{run}")):
        changed = http.patch(path, json={"notes": MARKDOWN})
        assert (changed.status_code, changed.json()["notes"]) == (200, MARKDOWN)
        assert http.get(path).json()["notes"] == MARKDOWN
        assert http.patch(path, json={}).json()["notes"] == MARKDOWN
        for shown in (browser.get(page).text, browser.get(f"{page}/notes").text):
            assert "<h2>Finding</h2>" in shown
            assert "<strong>well</strong>" in shown
            assert '<a href="https://example.org/a">' in shown
            assert "<script>alert" not in shown
            assert 'href="javascript' not in shown
            assert '<img src="https' not in shown
        refused = http.patch(path, json={"notes": "x" * 20_001})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/notes")
        assert http.patch(path, json={"notes": ""}).json()["notes"] == ""
    with rows.reading() as session:
        assert {entry.target for entry in audit.page(session).items} >= {id, run}


def test_stars_and_the_archive_choose_what_lists_and_tables_of_arms_hold(
    http: httpx.Client, browser: httpx.Client
) -> None:
    plain, starred, archived = (
        submit_over_http(http, TINY | {"name": name})["id"] for name in ("plain", "star", "old")
    )
    assert http.patch(f"/v1/experiments/{starred}", json={"starred": True}).json()["starred"]
    assert http.patch(f"/v1/experiments/{archived}", json={"archived": True, "starred": True}).json()[
        "archived"
    ]

    def listed(**params: str) -> list[str]:
        return [item["id"] for item in http.get("/v1/experiments", params=params).json()["items"]]

    assert listed() == [starred, plain]
    assert listed(starred="true") == [starred]
    assert listed(starred="false") == [plain]
    assert listed(archived="true") == [archived]
    pages = {
        shown: browser.get("/experiments", params={"shown": shown}).text
        for shown in ("", "starred", "archived")
    }
    found = {
        shown: [id for id in (plain, starred, archived) if f"/experiments/{id}" in page]
        for shown, page in pages.items()
    }
    assert found == {"": [plain, starred], "starred": [starred], "archived": [archived]}
    arms = http.get("/v1/arms").json()["items"]
    assert {arm["experiment_id"] for arm in arms} == {plain, starred}
    assert http.get("/v1/arms", params={"experiment": archived}).json()["items"]
    assert http.get(f"/v1/experiments/{archived}").json()["archived"]
    http.patch(f"/v1/experiments/{archived}", json={"archived": False})
    assert listed() == [archived, starred, plain]


@pytest.mark.parametrize("status", ["queued", "cancelled"])
def test_an_experiment_without_rounds_shows_no_chart(
    http: httpx.Client, browser: httpx.Client, status: str
) -> None:
    id = submit_over_http(http)["id"]
    if status == "cancelled":
        http.post(f"/v1/experiments/{id}/cancel")
    page = browser.get(f"/experiments/{id}").text
    assert 'class="curves"' not in page
    assert (
        "No rounds yet"
        if status == "queued"
        else "This experiment was cancelled before it completed a round."
    ) in page


def test_with_a_key_that_only_reads_there_are_notes_and_no_form(
    app: FastAPI, settings: Settings, http: httpx.Client
) -> None:
    id = submit_over_http(http)["id"]
    http.patch(f"/v1/experiments/{id}", json={"notes": "Seen."})
    with browsing(app, key_for(settings.database, scope=Scope.READ)) as reader:
        page = reader.get(f"/experiments/{id}").text
        assert "<p>Seen.</p>" in page
        assert "<textarea" not in page
        star = reader.patch(f"/v1/experiments/{id}", json={"starred": True})
    assert star.status_code == 403
