"""Who can be reached: given or drawn, and rounds in which nobody can."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from fedcore import RoundReport, Simulation, run
from fedcore.errors import SpecificationError
from fedcore.systems.availability import AnyAvailability
from tests.builders.specifications import EXACTLY, QUADRATIC, SYNTHETIC, Document, specification


def availability(document: Document) -> AnyAvailability:
    return TypeAdapter(AnyAvailability).validate_python(document)


def test_a_trace_repeats_after_its_last_row() -> None:
    days = availability({"kind": "trace", "rounds": [[2, 0], [], [1, 1]]})
    rows = [days.reachable(3, seed=0, round=round) for round in range(1, 6)]
    assert [row.all().tolist() for row in rows] == [[0, 2], [], [1], [0, 2], []]


def test_each_client_is_there_with_its_probability() -> None:
    spec = availability({"kind": "bernoulli", "probability": [0.2, 1.0, 0.7]})
    rounds = [spec.reachable(3, seed=5, round=round) for round in range(1, 2_001)]
    counts = np.bincount(np.concatenate([row.all() for row in rounds]), minlength=3)
    np.testing.assert_allclose(counts / 2_000, [0.2, 1.0, 0.7], atol=0.04)


def test_availability_does_not_depend_on_the_cohort_drawn_from_it() -> None:
    """The same clients are there whatever the scheme; it draws from another stream."""
    spec = availability({"kind": "bernoulli", "probability": 0.5})
    first, second = spec.reachable(1_000, 0, 1), spec.reachable(1_000, 0, 2)
    assert first.all().tolist() == spec.reachable(1_000, 0, 1).all().tolist() != second.all().tolist()


@pytest.mark.parametrize("probability", [0.3, [0.1, 0.9, 0.5, 0.7, 0.2] * 200])
def test_asking_of_some_is_asking_of_all(probability: Any) -> None:
    spec = availability({"kind": "bernoulli", "probability": probability})
    there = spec.reachable(1_000, seed=3, round=7)
    clients = np.random.default_rng(0).permutation(1_000)
    np.testing.assert_array_equal(there.has(clients), np.isin(clients, there.all()))


NOBODY_IN_ROUND_2: Document = {"availability": {"kind": "trace", "rounds": [[0, 1, 2], [], [1, 2, 3]]}}


# A quadratic is one layer, which these leave as it is, or with the clients.
@pytest.mark.parametrize("kind", sorted({*EXACTLY} - {"fedper", "fedrep", "fedbabu", "local"}))
def test_the_server_keeps_its_model_when_nobody_can_be_reached(kind: str) -> None:
    spec = specification(QUADRATIC, algorithm={"kind": kind}, systems=NOBODY_IN_ROUND_2, rounds=5)
    first, second, third, _, fifth = run(spec)
    assert second.extra["x"] == first.extra["x"] != third.extra["x"]
    assert (second.local_steps, second.bytes_up, second.bytes_down) == (0, 0, 0)
    assert second.train_loss == first.train_loss
    assert fifth.extra["x"] != third.extra["x"] or fifth.local_steps == 0


def test_an_empty_cohort_of_bernoulli_leaves_the_model_too() -> None:
    spec = specification(QUADRATIC, participation={"kind": "bernoulli", "probability": 0.2}, rounds=12)
    reports = list(run(spec))
    empty = [index for index, report in enumerate(reports) if report.local_steps == 0 and index]
    assert empty
    assert all(reports[index].extra["x"] == reports[index - 1].extra["x"] for index in empty)


@pytest.mark.parametrize(
    "systems", [NOBODY_IN_ROUND_2, {"availability": {"kind": "bernoulli", "probability": 0.3}}]
)
def test_a_run_with_empty_rounds_resumes_bit_identical(systems: Document) -> None:
    spec = specification(SYNTHETIC, algorithm={"kind": "scaffold"}, systems=systems)

    def reports(simulation: Simulation) -> list[RoundReport]:
        return [replace(simulation.advance(), seconds=0.0) for _ in range(simulation.round, spec.rounds)]

    whole = reports(Simulation(spec, seed=2))
    for done in range(1, spec.rounds):
        first, second = Simulation(spec, seed=2), Simulation(spec, seed=2)
        for _ in range(done):
            first.advance()
        second.restore(first.checkpoint())
        assert reports(second) == whole[done:]


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        (
            {"systems": {"availability": {"kind": "trace", "rounds": [[0], [9]]}}},
            "/systems/availability/rounds",
            "client 9 does not exist",
        ),
        (
            {"systems": {"availability": {"kind": "bernoulli", "probability": [0.5]}}},
            "/systems/availability/probability",
            "4 clients, not 1",
        ),
        (
            {"participation": {"kind": "bernoulli", "probability": [0.5] * 5}},
            "/participation/probability",
            "4 clients, not 5",
        ),
        (
            {
                "systems": NOBODY_IN_ROUND_2,
                "participation": {"kind": "without_replacement", "clients_per_round": 2},
            },
            "/participation/weighting",
            "use `samples` or `uniform`",
        ),
        (
            {"systems": NOBODY_IN_ROUND_2, "participation": {"kind": "full", "weighting": "unbiased"}},
            "/participation/weighting",
            "probability",
        ),
    ],
)
def test_availabilities_that_do_not_fit_are_refused(
    changes: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises((ValidationError, SpecificationError), match=words) as refused:
        specification(QUADRATIC, **changes)
    assert pointer in str(refused.value)


@pytest.mark.parametrize("probability", [0, 1.5, []])
def test_a_probability_is_one(probability: Any) -> None:
    with pytest.raises(ValidationError):
        availability({"kind": "bernoulli", "probability": probability})
