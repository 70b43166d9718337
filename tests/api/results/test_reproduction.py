"""Repeating experiments and comparing them, from rows written by hand."""

import httpx
import pytest
from sqlalchemy import update

from api.results.reproduction import relative
from fedcore.platform.store import Database, experiments
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.simulation.report import RoundReport
from tests.builders.claims import claim, commit, end_runs, fail, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.builders.transactions import write


def _history(held: Claim) -> list[RoundReport]:
    return [report(round, train_loss=1 / (round + held.seed + held.arm)) for round in (1, 2, 3)]


def _done(http: httpx.Client, rows: Database) -> str:
    made = submit_over_http(http, TWO_ARMS)
    end_runs(rows, _history, 6)
    return str(made["id"])


def _again(http: httpx.Client, id: str, **headers: str) -> str:
    answer = http.post(f"/v1/experiments/{id}/reproduce", headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _compared(http: httpx.Client, id: str) -> Document:
    return http.get(f"/v1/experiments/{id}/reproduction").json()


@pytest.mark.usefixtures("database_url")
def test_reproduction_is_pending_until_its_runs_have_ended_or_a_number_differs(
    http: httpx.Client, rows: Database
) -> None:
    again = _again(http, _done(http, rows))
    held = [claim(rows) for _ in range(6)]
    assert (_compared(http, again)["outcome"], _compared(http, again)["rounds"]) == ("pending", 0)
    commit(rows, held[0], _history(held[0])[:1])
    assert (_compared(http, again)["outcome"], _compared(http, again)["rounds"]) == ("pending", 1)
    commit(rows, held[5], [report(1, train_loss=7.0)])
    found = _compared(http, again)
    assert found["outcome"] == "different"
    assert [
        (one["arm"], one["seed"], one["round"], one["original"], one["here"]) for one in found["differing"]
    ] == [(1, 2, 1, 0.25, 7.0)]


def test_runs_that_fail_or_stop_elsewhere_differ(http: httpx.Client, rows: Database) -> None:
    original = _done(http, rows)
    again = _again(http, original)
    failed = claim(rows)
    fail(rows, commit(rows, failed, _history(failed)[:2]))
    end_runs(rows, lambda held: _history(held)[: 2 if held.arm else 3], 5)
    found = [
        (one["measure"], one["round"], one["original"], one["here"])
        for one in _compared(http, again)["differing"]
    ]
    assert found == [("status", 2, "succeeded", "failed"), *[("rounds", 3, 3, 2)] * 3]


def test_a_repetition_whose_runs_fail_has_failed_and_says_why(http: httpx.Client, rows: Database) -> None:
    """It says nothing about the numbers, unless others differ."""
    original = _done(http, rows)
    again, other, ended = (_again(http, original) for _ in range(3))
    http.post(f"/v1/experiments/{ended}/cancel")
    assert [_compared(http, ended)[name] for name in ("outcome", "error")] == ["failed", None]
    fail(rows, claim(rows), "DataUnavailableError: gone")
    assert _compared(http, again)["outcome"] == "pending"
    end_runs(rows, _history, 5)
    assert [_compared(http, again)[name] for name in ("outcome", "error")] == [
        "failed",
        "DataUnavailableError: gone",
    ]
    fail(rows, claim(rows))
    end_runs(rows, lambda _: [report(1, train_loss=7.0)], 5)
    assert _compared(http, other)["outcome"] == "different"


def test_experiments_that_have_not_succeeded_are_not_repeated(http: httpx.Client) -> None:
    made = submit_over_http(http)
    answer = http.post(f"/v1/experiments/{made['id']}/reproduce")
    assert answer.status_code == 409
    assert "is queued" in answer.json()["detail"]


@pytest.mark.usefixtures("database_url")
def test_a_name_stands_for_the_original_of_its_reproductions(http: httpx.Client, rows: Database) -> None:
    original = _done(http, rows)
    name = http.get(f"/v1/experiments/{original}").json()["name"]
    again = [_again(http, original) for _ in range(2)]
    assert http.get(f"/v1/experiments/{name}").json()["id"] == original
    assert http.get(f"/v1/experiments/{again[0]}").json()["name"] == name


def test_a_repeated_request_repeats_once(http: httpx.Client, rows: Database) -> None:
    original = _done(http, rows)
    assert _again(http, original, **{"Idempotency-Key": "once"}) == _again(
        http, original, **{"Idempotency-Key": "once"}
    )
    answer = http.post("/v1/experiments", json=TINY, headers={"Idempotency-Key": "once"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:fedq:problem:idempotency")


def test_reproductions_of_nothing_or_of_what_is_gone_are_not_found(
    http: httpx.Client, rows: Database
) -> None:
    original = _done(http, rows)
    again = _again(http, original)
    answer = http.get(f"/v1/experiments/{original}/reproduction")
    assert (answer.status_code, "is not a reproduction" in answer.json()["detail"]) == (404, True)
    write(rows, experiments.delete, original)
    answer = http.get(f"/v1/experiments/{again}/reproduction")
    assert (answer.status_code, original in answer.json()["detail"]) == (404, True)


def test_another_specification_is_told(http: httpx.Client, rows: Database) -> None:
    original = _done(http, rows)
    again = _again(http, original)
    with rows.transaction() as session:
        changed = {**http.get(f"/v1/experiments/{original}").json()["specification"], "rounds": 9}
        session.execute(update(ExperimentRecord).where(ExperimentRecord.id == original).values(spec=changed))
    (other,) = _compared(http, again)["made_otherwise"]
    assert (other["what"], other["runs"]) == ("specification_sha256", 6)
    assert other["original"] != other["here"]


@pytest.mark.parametrize(
    ("original", "here", "expected"), [(2.0, 1.0, 0.5), (-1.0, 1.0, 2.0), (1e308, -1e308, 2.0), (0, 3, 1.0)]
)
def test_differences_are_told_relative_to_the_larger_number(
    original: float, here: float, expected: float
) -> None:
    assert relative(original, here) == expected


def test_words_have_no_relative_difference() -> None:
    assert relative("succeeded", "failed") is None
    assert relative(1.0, None) is None
