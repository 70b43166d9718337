"""`weighting: unbiased`, by enumeration: the expected weight of each client over all cohorts and
all dropped stragglers is p_i.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import TypeAdapter

from fedcore.errors import SpecificationError
from fedcore.systems.availability import TraceAvailable
from fedcore.systems.cohorts import Drawn, draw, weights
from fedcore.systems.participation import AnyParticipation, Bernoulli, Full, Uniform, WithReplacement
from fedcore.systems.work import Stragglers
from tests.builders.specifications import QUADRATIC, Document, specification

SHARE = np.array([0.4, 0.3, 0.2, 0.1])
EVERYONE = np.arange(4)
SCHEMES: dict[str, Document] = {
    "full": {"kind": "full"},
    "uniform": {"kind": "uniform", "clients_per_round": 3},
    "uniform by fraction": {"kind": "uniform", "fraction": 0.5},
    "S1": {"kind": "with_replacement", "clients_per_round": 3},
    "S2": {"kind": "without_replacement", "clients_per_round": 3},
    "S2 by default": {"kind": "without_replacement", "clients_per_round": 3, "weighting": None},
    "bernoulli": {"kind": "bernoulli", "probability": 0.3},
    "bernoulli per client": {"kind": "bernoulli", "probability": [1.0, 0.5, 0.25, 0.01]},
    "bernoulli with two who always come": {"kind": "bernoulli", "probability": [1.0, 1.0, 0.25, 0.01]},
}
"""Weighted by `unbiased` unless they say otherwise."""


def scheme(document: Document) -> AnyParticipation:
    return TypeAdapter(AnyParticipation).validate_python({"weighting": "unbiased", **document})


def cohorts(chosen: AnyParticipation) -> Iterator[tuple[float, Drawn]]:
    """Every cohort that may be drawn from the four clients, with its probability."""
    match chosen:
        case Full():
            drawn = [(1.0, EVERYONE)]
        case Bernoulli():
            chance = np.broadcast_to(chosen.probability, 4)
            masks = [np.array(mask) for mask in product([False, True], repeat=4)]
            drawn = [(float(np.prod(np.where(mask, chance, 1 - chance))), EVERYONE[mask]) for mask in masks]
        case WithReplacement():
            draws = [np.array(draw) for draw in product(range(4), repeat=chosen.cohort_size(4))]
            drawn = [(float(np.prod(SHARE[draw])), draw) for draw in draws]
        case _:
            subsets = [np.array(subset) for subset in combinations(range(4), chosen.cohort_size(4))]  # type: ignore[attr-defined]
            drawn = [(1 / len(subsets), subset) for subset in subsets]
    for probability, clients in drawn:
        yield probability, Drawn(*np.unique(clients, return_counts=True))


def expected_weights(chosen: AnyParticipation, stragglers: Stragglers | None) -> np.ndarray:
    """[N] the mean over cohorts, and over which of their clients are dropped, all sets of that size
    alike.
    """
    mean = np.zeros(4)
    for probability, drawn in cohorts(chosen):
        size = len(drawn.clients)
        finishing = size if stragglers is None else int(np.rint(size * (1 - stragglers.fraction)))
        arrivals = [np.array(kept, np.int64) for kept in combinations(range(size), finishing)]
        for kept in arrivals:
            arrived = Drawn(drawn.clients[kept], drawn.times[kept])
            mean[arrived.clients] += (
                probability / len(arrivals) * weights(chosen, arrived, SHARE, None, size, stragglers)
            )
    return mean


@pytest.mark.parametrize("fraction", [None, 0.2, 0.5, 0.6])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_expected_weight_of_a_client_is_its_share(name: str, fraction: float | None) -> None:
    stragglers = None if fraction is None else Stragglers(fraction=fraction, policy="drop")
    np.testing.assert_allclose(expected_weights(scheme(SCHEMES[name]), stragglers), SHARE, rtol=1e-13)


@pytest.mark.parametrize("fraction", [0.75, 0.8, 0.86])
def test_one_probability_for_all_has_a_closed_form_however_many_are_dropped(fraction: float) -> None:
    """The least cohort of which any client is kept has 3, 3 and 4 clients."""
    stragglers = Stragglers(fraction=fraction, policy="drop")
    np.testing.assert_allclose(expected_weights(scheme(SCHEMES["bernoulli"]), stragglers), SHARE, rtol=1e-13)


@pytest.mark.parametrize("name", SCHEMES)
def test_stragglers_whose_partial_work_is_accepted_change_no_weight(name: str) -> None:
    chosen = scheme(SCHEMES[name])
    partial = Stragglers(fraction=0.9, policy="accept_partial")
    for _, drawn in cohorts(chosen):
        np.testing.assert_array_equal(
            weights(chosen, drawn, SHARE, None, len(drawn.clients), partial),
            weights(chosen, drawn, SHARE, None),
        )


@pytest.mark.parametrize(
    ("participation", "systems", "words"),
    [
        (
            {**SCHEMES["S1"], "weighting": "unbiased"},
            {"stragglers": {"fraction": 0.75, "policy": "drop"}},
            "losing a whole cohort",
        ),
        (
            {**SCHEMES["bernoulli per client"], "weighting": "unbiased"},
            {"stragglers": {"fraction": 0.9, "policy": "drop"}},
            "losing a whole cohort",
        ),
        *(
            (
                participation,
                {"devices": {"steps_per_second": {"kind": "constant", "value": 1}}, "deadline": deadline},
                "be on time",
            )
            for deadline in ({"seconds": 9, "policy": "drop"}, {"seconds": 9, "policy": "accept_partial"})
            for participation in (
                {"kind": "uniform", "clients_per_round": 2, "weighting": "unbiased"},
                {"kind": "without_replacement", "clients_per_round": 2},
            )
        ),
        (
            {"kind": "without_replacement", "clients_per_round": 2},
            {"availability": {"kind": "bernoulli", "probability": 0.5}},
            "be drawn is unknown",
        ),
    ],
)
def test_weights_that_need_an_unknown_chance_are_rejected(
    participation: Document, systems: Any, words: str
) -> None:
    with pytest.raises(SpecificationError, match=words) as refused:
        specification(QUADRATIC, participation=participation, systems=systems)
    assert refused.value.pointer == "/participation/weighting"


class Broken(Uniform):
    """Draws what the test says."""

    drawn: ClassVar[Any]

    def draw(self, share: Any, reachable: Any, rng: Any, round: int) -> Any:
        return self.drawn


@pytest.mark.parametrize("drawn", [np.array([0.5, 1.0]), np.array([3, 5]), np.array([-1])])
def test_draws_that_are_no_clients_are_refused(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "drawn", drawn, raising=False)
    with pytest.raises(TypeError, match=r"Broken.draw must return ids of clients, integers below 5"):
        draw(Broken(kind="uniform", clients_per_round=2), np.full(5, 0.2), 0, 1)


def test_a_draw_of_a_client_that_cannot_be_reached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "drawn", np.array([1, 3]), raising=False)
    scheme, some = Broken(kind="uniform", clients_per_round=2), TraceAvailable(np.array([0, 1]))
    with pytest.raises(ValueError, match="not `reachable` in round 2"):
        draw(scheme, np.full(5, 0.2), 0, 2, some)
