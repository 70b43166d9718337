"""Published claims compared with the results of a preset."""

from collections.abc import Sequence

import httpx
import pytest
from sqlalchemy import update

from fedcore import presets
from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.simulation.report import RoundReport
from tests.builders.claims import end_runs
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY

PRESET = "fedlin-figure-1-same-steps"
ARMS = {0: 1.4366756839825, 1: 2.342916241917376, 2: 0.0}
"""Where FedProx, FedNova and FedLin come to rest."""


def at_rest(held: Claim) -> Sequence[RoundReport]:
    return [report(held, round, ARMS[held.arm]) for round in range(1, 11)]


def nowhere(held: Claim) -> Sequence[RoundReport]:
    return [report(held, round, 5.0) for round in range(1, 11)]


def report(held: Claim, round: int, distance: float) -> RoundReport:
    return RoundReport(
        held.arm,
        held.seed,
        round,
        local_steps=1,
        bytes_up=1,
        bytes_down=1,
        seconds=0.1,
        extra={"distance": distance},
    )


def verdicts(http: httpx.Client, id: str) -> list[str | None]:
    answer = http.get(f"/v1/experiments/{id}/claims")
    assert answer.status_code == 200, answer.text
    return [claim["verdict"] for claim in answer.json()["claims"]]


def test_claims_hold_or_not_by_what_came_out(http: httpx.Client, rows: Database) -> None:
    first = submit_over_http(http, {"preset": PRESET})["id"]
    assert verdicts(http, first) == [None, None]
    end_runs(rows, at_rest, 6)
    assert verdicts(http, first) == ["holds", "holds"]
    second = submit_over_http(http, {"preset": PRESET})["id"]
    end_runs(rows, nowhere, 6)
    assert verdicts(http, second) == ["does_not_hold", "does_not_hold"]


def test_an_answer_says_what_it_rests_on(http: httpx.Client, rows: Database) -> None:
    id = submit_over_http(http, {"preset": PRESET, "overrides": {"rounds": 10}})["id"]
    end_runs(rows, at_rest, 6)
    answer = http.get(f"/v1/experiments/{id}/claims").json()
    preset = presets.load(PRESET)
    assert (answer["preset"], answer["preset_version"], answer["changed"]) == (PRESET, preset.version, True)
    assert answer["departures"] == list(preset.departures)
    side = answer["claims"][1]["comparisons"][0]
    assert (side["says"], side["left"], side["right"]) == (
        "final distance of [FedLin] below 1e-12",
        0.0,
        1e-12,
    )
    assert (side["seeds"], side["seeds_holding"]) == (2, 2)


@pytest.mark.parametrize(
    "provenance", [{"preset": "gone", "preset_version": 1}, {"preset": PRESET, "preset_version": 0}]
)
def test_claims_that_are_no_longer_there_are_not_found(
    http: httpx.Client, rows: Database, provenance: dict[str, object]
) -> None:
    id = submit_over_http(http, {"preset": PRESET})["id"]
    with rows.transaction() as session:
        session.execute(update(ExperimentRecord).values(provenance=provenance))
    assert http.get(f"/v1/experiments/{id}/claims").status_code == 404


def test_nothing_is_claimed_of_an_experiment_of_ones_own(http: httpx.Client) -> None:
    answer = http.get(f"/v1/experiments/{submit_over_http(http, TINY)['id']}/claims")
    assert answer.status_code == 404
    assert "was not submitted as a preset" in answer.json()["detail"]
