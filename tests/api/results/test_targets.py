"""Cost of reaching a target: rounds, bytes and time, of runs that have not reached it at least those that
they spent.
"""

from io import StringIO

import httpx
import numpy as np
import pandas as pd
import pytest

from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from tests.builders.claims import claim, commit, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS, Document

ROUNDS = {(0, 0): 2, (0, 1): 4, (0, 2): 6, (1, 0): 1, (1, 1): 2, (1, 2): 5}
"""In which round each arm and seed gets there."""
TARGET = {"target": "test_accuracy:0.8"}


def _history(held: Claim, *, late: bool = False) -> list[RoundReport]:
    there = ROUNDS[held.arm, held.seed] + 100 * (late and (held.arm, held.seed) == (1, 2))
    return [
        report(
            round,
            # Once there, it does not stay: the first time counts.
            test_accuracy=0.8 if round == there else 0.5,
            train_loss=1.0 / round,
            bytes_up=2_000_000,
            bytes_down=1_000_000,
            seconds=0.5,
            extra={"simulated_seconds": 10.0 * round},
        )
        for round in range(1, 7)
    ]


def _done(http: httpx.Client, rows: Database, *, late: bool = False) -> str:
    made = submit_over_http(http, TWO_ARMS | {"rounds": 6})
    end_runs(rows, lambda held: _history(held, late=late), 6)
    return f"/v1/experiments/{made['id']}/results"


def _arms(http: httpx.Client, place: str, **params: str) -> list[Document]:
    return [arm["to_target"] for arm in http.get(place, params=TARGET | params).json()["arms"]]


@pytest.mark.usefixtures("database_url")
def test_each_cost_is_that_of_the_first_round_that_is_as_good(http: httpx.Client, rows: Database) -> None:
    place = _done(http, rows)
    first, second = _arms(http, place)
    assert [(arm["runs"], arm["reached"], arm["missed"]) for arm in (first, second)] == [(3, 3, 0), (3, 3, 0)]
    rounds = np.array([2.0, 4.0, 6.0])
    for name, each in (("rounds", 1.0), ("megabytes", 3.0), ("simulated_seconds", 10.0), ("seconds", 0.5)):
        assert first[name]["mean"] == pytest.approx(each * rounds.mean())
        assert first[name]["std"] == pytest.approx(each * rounds.std(ddof=1))
    assert http.get(place, params=TARGET).json()["target"] == {"metric": "test_accuracy", "value": 0.8}


def test_a_run_that_never_got_there_counts_with_what_it_spent(http: httpx.Client, rows: Database) -> None:
    """It has taken 6 rounds without reaching it, so the mean is at least that of 1, 2 and 6."""
    _, second = _arms(http, _done(http, rows, late=True))
    assert (second["runs"], second["reached"], second["missed"]) == (3, 2, 1)
    assert (second["rounds"]["n"], second["rounds"]["mean"]) == (3, 3.0)
    assert [second["rounds"][end] for end in ("std", "low", "high")] == [None, None, None]


def test_arms_are_compared_by_what_all_runs_are_known_to_cost(http: httpx.Client, rows: Database) -> None:
    """Rounds count up to the 6 of the run that ended without it, here as those of the others."""
    place = _done(http, rows, late=True)
    found = http.get(place, params=TARGET).json()["best_arms"]
    assert (found["metric"], found["by"]) == ("test_accuracy", "rounds")
    assert "Runs count up to 6 rounds" in found["says"]
    mean = np.exp(np.log([[2, 4, 6], [1, 2, 6]]).mean(1))
    assert found["beside"][1]["difference"] == pytest.approx(mean[1] - mean[0])
    sent = http.get(place, params=TARGET | {"by": "megabytes"}).json()["best_arms"]
    assert sent["beside"][1]["difference"] == pytest.approx(3 * (mean[1] - mean[0]))
    final = http.get(place, params=TARGET | {"by": "area", "metric": "train_loss"}).json()["best_arms"]
    assert (final["metric"], final["by"]) == ("train_loss", "area")


def test_where_no_run_got_there_nothing_is_compared(http: httpx.Client, rows: Database) -> None:
    answer = http.get(_done(http, rows), params={"target": "test_accuracy:0.9"}).json()
    assert answer["best_arms"] is None
    assert [arm["to_target"]["missed"] for arm in answer["arms"]] == [3, 3]


def test_a_cost_without_a_target_is_refused(http: httpx.Client, rows: Database) -> None:
    answer = http.get(_done(http, rows), params={"by": "rounds"})
    assert answer.status_code == 422
    (flaw,) = answer.json()["errors"]
    assert (flaw["pointer"], "target=METRIC:VALUE" in flaw["detail"]) == ("?by", True)


def test_a_run_under_way_has_not_missed_it_yet(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, TWO_ARMS | {"rounds": 6})
    held = claim(rows)
    commit(rows, held, _history(held)[:1])
    first, second = _arms(http, f"/v1/experiments/{made['id']}/results")
    assert (first["reached"], first["missed"], first["rounds"]["mean"]) == (0, 0, 1.0)
    assert (second["runs"], second["reached"], second["missed"]) == (3, 0, 0)
    assert second["rounds"] is None


def test_a_loss_is_reached_from_above(http: httpx.Client, rows: Database) -> None:
    (first, _) = _arms(http, _done(http, rows), target="train_loss:0.34")
    assert (first["rounds"]["mean"], first["rounds"]["std"]) == (3.0, 0.0)


def test_the_target_is_in_tables_and_needs_no_other_metric(http: httpx.Client, rows: Database) -> None:
    answer = http.get(
        _done(http, rows, late=True), params=TARGET | {"metric": "train_loss"}, headers={"Accept": "text/csv"}
    )
    table = pd.read_csv(StringIO(answer.text)).query("arm == 1").set_index("figure")
    assert set(table[table["metric"] == "test_accuracy"].index) == {
        "reached_target",
        *(f"{cost}_to_target" for cost in ("rounds", "megabytes", "simulated_seconds", "seconds")),
        "rounds_difference",
    }
    (share,) = table[table.index == "reached_target"][["n", "mean"]].to_numpy().tolist()
    assert share == pytest.approx([3, 2 / 3])


FORM = "must be METRIC:VALUE, e.g. test_accuracy:0.9, not "


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("0.9", FORM),
        ("test_accuracy", FORM),
        ("test_accuracy:", FORM),
        ("test_accuracy:high", FORM),
        ("test_loss:1e999", FORM),
        ("test_acuracy:0.9", "not 'test_acuracy'; did you mean 'test_accuracy'?"),
        ("tau_eff:3", "the metric must be one of 'train_loss', 'test_loss', "),
    ],
)
def test_malformed_targets_are_refused_with_what_would_be_one(
    http: httpx.Client, rows: Database, target: str, told: str
) -> None:
    answer = http.get(f"/v1/experiments/{submit_over_http(http)['id']}/results", params={"target": target})
    assert answer.status_code == 422
    (flaw,) = answer.json()["errors"]
    assert flaw["pointer"] == "?target"
    assert told in flaw["detail"]
