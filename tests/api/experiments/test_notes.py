"""Notes of experiments and runs, stars and the archive."""

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, audit
from fedcore.settings import Settings
from tests.api.conftest import browsing
from tests.api.histories import TINY, submit
from tests.support.access import key_for

MARKDOWN = """# Finding
Works **well**, see [the paper](https://example.org/a).

<script>alert(1)</script> [bad](javascript:alert(1)) ![far](https://example.org/a.png)
"""


def test_notes_are_kept_audited_and_rendered_without_scripts_and_images(
    http: httpx.Client, browser: httpx.Client, rows: Database
) -> None:
    id = submit(http)["id"]
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
        submit(http, TINY | {"name": name})["id"] for name in ("plain", "star", "old")
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
    id = submit(http)["id"]
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
    id = submit(http)["id"]
    http.patch(f"/v1/experiments/{id}", json={"notes": "Seen."})
    with browsing(app, key_for(settings.database, scope=Scope.READ)) as reader:
        page = reader.get(f"/experiments/{id}").text
        assert "<p>Seen.</p>" in page
        assert "<textarea" not in page
        star = reader.patch(f"/v1/experiments/{id}", json={"starred": True})
    assert star.status_code == 403
