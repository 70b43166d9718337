"""A run that succeeded and is of little use says so wherever it is shown, and its status stays."""

import httpx
import pytest

from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from tests.builders.claims import claim, commit, end_run, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS, Document

CHANCE = {"engine": "vectorised", "chance_accuracy": 0.25}
CHANCE_WORDS = (
    "ended at chance level: test accuracy 25.00 %, where the most frequent label alone gives 25.00 %"
)
WORSE_WORDS = "ended worse than it began: train loss 1 at the first evaluation, 3 at the last"
EXPERIMENT_WORDS = (
    "1 of 6 runs diverged; 2 of 6 runs ended at chance level; 1 of 6 runs ended worse than it began"
)


def _rows(accuracy: float, loss: float) -> list[RoundReport]:
    return [
        report(1, test_accuracy=0.5, train_loss=1.0),
        report(2, test_accuracy=None, train_loss=None),
        report(3, test_accuracy=accuracy, train_loss=loss),
    ]


def _end(rows: Database, held: Claim) -> None:
    """Arm 0: diverged, chance, chance; arm 1: worse, good, good."""
    accuracy, loss = {(0, 1): (0.25, 9.0), (0, 2): (0.25, 0.5), (1, 0): (0.6, 3.0)}.get(
        (held.arm, held.seed), (0.9, 0.1)
    )
    played = _rows(accuracy, loss)
    diverged = 3 if (held.arm, held.seed) == (0, 0) else None
    end_run(rows, commit(rows, held, played), diverged_round=diverged, provenance=CHANCE)


@pytest.fixture
def id(http: httpx.Client, rows: Database) -> str:
    made = submit_over_http(http, TWO_ARMS)["id"]
    for _ in range(6):
        _end(rows, claim(rows))
    return str(made)


def test_runs_arms_and_experiments_have_the_field(http: httpx.Client, id: str) -> None:
    runs: list[Document] = http.get(f"/v1/experiments/{id}/runs").json()["items"]
    assert {run["status"] for run in runs} == {"succeeded"}
    assert [run["warning"] for run in runs] == [
        "diverged in round 3",
        CHANCE_WORDS,
        CHANCE_WORDS,
        WORSE_WORDS,
        None,
        None,
    ]
    experiment = http.get(f"/v1/experiments/{id}").json()
    assert (experiment["status"], experiment["warning"]) == ("succeeded", EXPERIMENT_WORDS)
    assert http.get("/v1/experiments").json()["items"][0]["warning"] == EXPERIMENT_WORDS
    arms = http.get(f"/v1/experiments/{id}/results").json()["arms"]
    assert [arm["warning"] for arm in arms] == [
        "1 of 3 runs diverged; 2 of 3 runs ended at chance level",
        "1 of 3 runs ended worse than it began",
    ]


def test_the_table_of_arms_has_the_kind_of_each_run(http: httpx.Client, id: str) -> None:
    found = http.get("/arms/rows", params={"experiment": id}).json()
    assert found["runs"]["warning"] == ["diverged", "at_chance", "at_chance", "worse", None, None]
    assert found["warnings"]["worse"] == ["ended worse than it began", "ended worse than they began"]


def test_pages_and_reports_have_a_mark_and_the_words(http: httpx.Client, id: str) -> None:
    (run, *_) = http.get(f"/v1/experiments/{id}/runs").json()["items"][3:]
    mark = f'aria-label="Warning: {EXPERIMENT_WORDS}"'
    assert mark in http.get("/").text
    page = http.get(f"/experiments/{id}").text
    assert mark in page
    assert f'<p class="notice warning">{EXPERIMENT_WORDS}</p>' in page
    assert http.get(f"/experiments/{id}/runs").text.count('aria-label="Warning: ') == 4
    assert f"The run {WORSE_WORDS}." in http.get(f"/runs/{run['id']}").text
    for form in ("html", "md"):
        text = http.get(f"/v1/experiments/{id}/report.{form}").text
        assert f"succeeded ({EXPERIMENT_WORDS})" in text
        assert WORSE_WORDS in text


def test_a_run_that_goes_on_has_no_warning_any_more(http: httpx.Client, rows: Database) -> None:
    id = submit_over_http(http, TWO_ARMS | {"seeds": [1]})["id"]
    for _ in range(2):
        _end(rows, claim(rows))
    assert http.get(f"/v1/experiments/{id}").json()["warning"] == "1 of 2 runs ended at chance level"
    assert http.post(f"/v1/experiments/{id}/extend", json={"rounds": 4}).status_code == 200
    assert http.get(f"/v1/experiments/{id}").json()["warning"] is None
    assert http.get("/arms/rows", params={"experiment": id}).json()["runs"]["warning"] == [None, None]
    held = claim(rows)
    end_run(rows, commit(rows, held, [report(4, test_accuracy=0.9, train_loss=0.1)]), provenance=CHANCE)
    assert http.get(f"/v1/experiments/{id}").json()["warning"] is None
