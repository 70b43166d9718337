"""Context of pages with curves, and the page that compares arms."""

import html
import json
import re

import httpx
import pytest

from api.results.queries import curve_context, measured
from fedcore.platform.store import Database
from tests.api.web.test_rendering import EVIL
from tests.builders.claims import claim, commit_slice, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import DIGITS_CNN, QUADRATIC, SYNTHETIC, TINY, TWO_ARMS, specification

JSON, ANYTHING = {"Accept": "application/json"}, {"Accept": "*/*"}


def _data(page: httpx.Response) -> dict[str, str]:
    """Attributes of the curves of a page."""
    assert page.status_code == 200, page.text
    (tag,) = re.findall(r'<div class="curves"[^>]*>', page.text)
    return {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}


def test_an_experiment_says_where_its_curves_are_and_which_way_is_better(
    browser: httpx.Client, rows: Database
) -> None:
    id = submit_over_http(browser, TWO_ARMS)["id"]
    commit_slice(rows, claim(rows), [report(1)])
    data = _data(browser.get(f"/experiments/{id}"))
    assert (data["results"], data["theory"], data["arms"]) == (
        f"/v1/experiments/{id}/results",
        f"/v1/experiments/{id}/theory",
        "2",
    )
    assert json.loads(data["metrics"]) == ["suboptimality", "train_loss", "objective", "distance"]
    assert json.loads(data["better"])["test_accuracy"] == "max"
    for address in (data["results"], data["theory"]):
        assert browser.get(address, headers=JSON).status_code == 200


def test_metrics_that_most_have_come_first() -> None:
    quadratic, synthetic = (
        specification(document).model_dump(mode="json") for document in (QUADRATIC, SYNTHETIC)
    )
    assert measured(synthetic) == ["train_loss", "test_loss", "test_accuracy"]
    assert measured(specification(DIGITS_CNN).model_dump(mode="json")) == []
    assert curve_context([quadratic, synthetic], 2)["metrics"][0] == "train_loss"
    assert curve_context([synthetic], 1)["metrics"][0] == "test_accuracy"


def test_arms_are_laid_side_by_side(browser: httpx.Client) -> None:
    two, other = (
        submit_over_http(browser, TWO_ARMS)["id"],
        submit_over_http(browser, {**TINY, "name": EVIL})["id"],
    )
    page = browser.get("/compare", params={"arm": [f"{two}:1", other]})
    data = _data(page)
    assert "theory" not in data
    assert EVIL not in page.text
    assert data["arms"] == "2"
    found = browser.get(data["results"], headers=JSON).json()
    assert [(member["experiment_id"], member["arm"]) for member in found["members"]] == [(two, 1), (other, 0)]
    assert re.findall(r'value="([^"]*)" checked', page.text) == [f"{two}:1", f"{other}:0"]
    assert (
        browser.get(
            re.findall(r'href="(/v1/compare/figure[^"]*)"', page.text)[0].replace("&amp;", "&"),
            headers=ANYTHING,
        ).status_code
        == 200
    )


@pytest.mark.parametrize("experiments", [0, 1, 3])
def test_without_arms_there_is_a_choice_of_experiments(browser: httpx.Client, experiments: int) -> None:
    ids = [
        submit_over_http(browser, {**TINY, "name": f"number {number}"})["id"] for number in range(experiments)
    ]
    page = browser.get("/compare")
    assert page.status_code == 200
    assert set(re.findall(r'<option value="([^"]*)"', page.text)) == set(ids)


def test_several_experiments_are_chosen_in_the_list(browser: httpx.Client) -> None:
    id = submit_over_http(browser)["id"]
    assert f'form="compare" name="arm" value="{id}"' in browser.get("/").text


def test_missing_experiments_and_those_of_others_are_not_compared(
    browser: httpx.Client, ann: httpx.Client
) -> None:
    id = submit_over_http(browser)["id"]
    assert ann.get("/compare", params={"arm": id}).status_code == 404
    assert id not in ann.get("/compare").text
    assert browser.get("/compare", params={"arm": "exp_z"}).status_code == 404
    assert browser.get("/compare", params={"arm": f"{id}:9"}).status_code == 422
