"""Initial content of `/submit`."""

import html
import json
import re

import httpx
import pytest
from fastapi import FastAPI

from api.experiments.submit_pages import EXAMPLE, choices
from fedcore import presets
from fedcore.platform.access import Scope
from fedcore.platform.store import Database
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec, yaml_documents
from tests.api.conftest import browsing
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, merged
from tests.support.access import key_for


def text_of(page: httpx.Response) -> str:
    """Content of the editor."""
    assert page.status_code == 200, page.text
    (text,) = re.findall(r"<textarea id=\"document\"[^>]*>(.*?)</textarea>", page.text, re.DOTALL)
    return html.unescape(text)


def test_form_begins_with_the_leading_arms_of_an_experiment_on_fresh_seeds(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    """That specification can be submitted; while no run has ended, the page says that there is none."""
    id = submit_over_http(http, TWO_ARMS)["id"]
    early = browser.get("/submit", params={"confirm": id})
    assert early.status_code == 422
    assert "wait for its runs" in early.text
    assert browser.get("/submit", params={"confirm": "exp_none"}).status_code == 404
    end_runs(rows, lambda held: [report(1, train_loss=1.0 + held.arm + held.seed / 10)], 6)
    document = yaml_documents.load(text_of(browser.get("/submit", params={"confirm": id})))
    made = submit_over_http(http, document)
    assert made["specification"]["seeds"] == list(range(3, 13))
    assert [arm["name"] for arm in made["arms"]] == ["lr=0.1", "lr=0.05"]


def test_form_begins_with_an_example_that_can_be_submitted(ann: httpx.Client) -> None:
    text = text_of(ann.get("/submit"))
    assert text == EXAMPLE
    answer = ann.post(
        "/v1/experiments?dry_run=true", content=text, headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", presets.names()[::7])
def test_a_preset_is_written_out(ann: httpx.Client, name: str) -> None:
    page = ann.get("/submit", params={"preset": name})
    assert yaml_documents.load(text_of(page)) == presets.load(name).spec
    (known,) = re.findall(r'data-preset="([^"]*)"', page.text)
    assert json.loads(html.unescape(known)) == {"name": name, "specification": presets.load(name).spec}


def test_presets_are_offered_with_what_they_cost(ann: httpx.Client) -> None:
    assert [choice.name for choice in choices()] == presets.names()
    demo = next(choice for choice in choices() if choice.name == "demo")
    assert (demo.runs, demo.rounds) == (12, 60)
    page = ann.get("/submit").text
    assert all(f'href="/submit?preset={name}"' in page for name in presets.names())


def test_an_experiment_is_begun_from_as_it_was_written_without_defaults(ann: httpx.Client) -> None:
    document = merged(
        TINY,
        {
            "local": {"optimizer": {"kind": "sgd", "momentum": 0.5}},
            "execution": {"priority": 7},
            "seeds": [3],
        },
    )
    made = submit_over_http(ann, document)
    text = text_of(ann.get("/submit", params={"from": made["id"]}))
    assert yaml_documents.load(text) == document
    assert (
        ExperimentSpec.model_validate(yaml_documents.load(text)).model_dump(mode="json")
        == made["specification"]
    )


def test_missing_preset_or_experiment_is_said_to_be_missing(ann: httpx.Client, http: httpx.Client) -> None:
    others = submit_over_http(http)["id"]
    for query in ({"preset": "domo"}, {"from": "exp_nothing"}, {"from": others}):
        page = ann.get("/submit", params=query)
        assert page.status_code == 404
        assert "not found" in page.text.lower()


def test_readers_are_told_that_they_may_only_read(app: FastAPI, settings: Settings) -> None:
    with browsing(app, key_for(settings.database, "eve", Scope.READ)) as reader:
        assert 'href="/submit"' not in reader.get("/").text
        page = reader.get("/submit")
    assert page.status_code == 403
    assert "requires a key of scope <code>submit</code>" in page.text


@pytest.mark.parametrize("name", presets.names()[3::11])
def test_submitted_specifications_are_written_so_that_they_say_the_same(ann: httpx.Client, name: str) -> None:
    made = ann.post("/v1/experiments", json={"preset": name})
    assert made.status_code == 201, made.text
    written = yaml_documents.load(text_of(ann.get("/submit", params={"from": made.json()["id"]})))
    stored = made.json()["specification"]
    # The trials of a study are proposed anew.
    (stored["search"] or {}).pop("proposed", None)
    expected = ExperimentSpec.model_validate(stored)
    assert ExperimentSpec.model_validate(written).model_dump(mode="json") == expected.model_dump(mode="json")
