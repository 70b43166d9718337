"""Selection of clients by values: each scheme against its formulas, in its limit cases, and in runs."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedcore.errors import SpecificationError
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from fedcore.systems.availability import TraceAvailable
from fedcore.systems.cohorts import Drawn, draw, select, weights
from fedcore.systems.participation import AnyParticipation
from fedcore.systems.participation.base import Outcome, RoundFacts, Timing
from fedcore.systems.participation.selection import Importance, Oort, PowerOfChoice, optimal_probabilities
from fedcore.systems.work import Stragglers
from tests.builders.specifications import QUADRATIC, SYNTHETIC, Document, specification

SHARE = np.array([0.4, 0.3, 0.2, 0.1])
EVERYONE = np.arange(4)
SAMPLES = np.array([40, 30, 20, 10])
DEVICES: Document = {
    "devices": {
        "steps_per_second": {"kind": "uniform", "low": 1, "high": 10},
        "upload_bytes_per_second": {"kind": "uniform", "low": 1000, "high": 9000},
        "download_bytes_per_second": {"kind": "constant", "value": 10_000},
    }
}
SCHEMES: dict[str, tuple[Document, Document]] = {
    "pow-d": ({"kind": "power_of_choice", "clients_per_round": 2, "candidates": 5}, {}),
    "rpow-d": (
        {"kind": "power_of_choice", "clients_per_round": 2, "candidates": 5, "losses": "stored"},
        {},
    ),
    "importance by norm": ({"kind": "importance", "clients_per_round": 3}, {}),
    "importance by loss": ({"kind": "importance", "clients_per_round": 3, "by": "loss"}, {}),
    "oort": ({"kind": "oort", "clients_per_round": 3, "epsilon_start": 0.5}, {}),
    "oort with a clock": (
        {
            "kind": "oort",
            "clients_per_round": 3,
            "preferred_seconds": 3,
            "pacer_seconds": 1,
            "pacer_rounds": 1,
        },
        DEVICES,
    ),
    "divfl": ({"kind": "divfl", "clients_per_round": 2, "candidates": 5}, {}),
    "fedcs": ({"kind": "fedcs", "clients_per_round": 3, "deadline_seconds": 9}, DEVICES),
}


def scheme(kind: str, **fields: Any) -> Any:
    return TypeAdapter(AnyParticipation).validate_python({"kind": kind, **fields})


def facts(round: int = 1, timing: Timing | None = None) -> RoundFacts:
    return RoundFacts(
        round,
        SHARE,
        SAMPLES,
        None
        if timing is None
        else lambda clients: Timing(
            timing.download[clients], timing.compute[clients], timing.upload[clients]
        ),
    )


def selected(
    chosen: Any,
    answers: NDArray[np.float64] | None = None,
    *,
    state: Any = None,
    among: NDArray[np.int64] = EVERYONE,
    known: RoundFacts | None = None,
    seed: int = 0,
) -> list[int]:
    known, state = known or facts(), chosen.start_state(4) if state is None else state
    candidates = Drawn(among, np.ones(len(among), np.int64))
    return select(chosen, candidates, answers, state, known, seed).clients.tolist()


def simulated(participation: Document, systems: Document, rounds: int = 5, **changes: Any) -> Simulation:
    return Simulation(
        specification(
            SYNTHETIC,
            participation=participation,
            systems=systems,
            rounds=rounds,
            execution={"precision": "float64", "engine": "reference"},
            **changes,
        ),
        seed=3,
    )


def test_power_of_choice_takes_the_largest_losses_of_candidates_drawn_by_share() -> None:
    chosen = scheme("power_of_choice", clients_per_round=2, candidates=3)
    candidates = draw(chosen, SHARE, 5, 7)
    by_share = draw(scheme("by_share", clients_per_round=3), SHARE, 5, 7)
    np.testing.assert_array_equal(candidates.clients, by_share.clients)
    losses = np.array([0.3, -1.0, 2.0])
    assert selected(chosen, losses, among=np.array([0, 2, 3])) == [0, 3]
    # Equal losses: the lowest client.
    assert selected(chosen, np.ones(3), among=np.array([0, 2, 3])) == [0, 2]


@pytest.mark.parametrize("losses", ["exact", "stored"])
def test_as_many_candidates_as_clients_is_sampling_by_share(losses: str) -> None:
    models = []
    power = {"kind": "power_of_choice", "clients_per_round": 2, "candidates": 2, "losses": losses}
    for participation in (power, {"kind": "by_share", "clients_per_round": 2}):
        simulation = Simulation(specification(QUADRATIC, participation=participation), seed=1)
        while not simulation.finished:
            simulation.advance()
        models.append(simulation.model()["x"])
    assert torch.equal(models[0], models[1])


def test_stored_losses_are_those_that_clients_reported_last() -> None:
    chosen = scheme("power_of_choice", clients_per_round=2, candidates=4, losses="stored")
    state = chosen.start_state(4)
    assert selected(chosen, state=state) == [0, 1]
    state = chosen.update_state(state, Outcome(np.array([0, 1]), losses=np.array([5.0, 1.0])), facts())
    assert selected(chosen, state=state) == [2, 3]
    state = chosen.update_state(state, Outcome(np.array([2, 3]), losses=np.array([3.0, 4.0])), facts(2))
    assert selected(chosen, state=state) == [0, 3]
    state = chosen.update_state(state, Outcome(np.array([0]), losses=np.array([2.0])), facts(3))
    assert selected(chosen, state=state) == [2, 3]


class Chooses:
    """A stream of numbers by which clients of a mask are drawn, whatever their probability."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask

    def random(self, size: int) -> NDArray[np.float64]:
        return np.where(self.mask, 0.0, 1.0)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.6, 0.7])
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 40.0], [5.0, np.nan, 1.0, 2.0], [0.0] * 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_importance_sampling_is_unbiased(values: list[float], count: int, fraction: float) -> None:
    """Over all 16 cohorts, and all sets of stragglers that are dropped of each, the expected weight of
    a client is its share.
    """
    chosen = scheme("importance", clients_per_round=count)
    stragglers = Stragglers(fraction=fraction, policy="drop")
    chance = chosen.probabilities(EVERYONE, np.array(values), SHARE)
    expected = np.zeros(4)
    for mask in map(np.array, product([False, True], repeat=4)):
        if (chance[~mask] == 1).any():
            continue
        found = chosen.select(EVERYONE, np.array(values), {}, facts(), Chooses(mask))
        size = len(found.clients)
        drawn = Drawn(found.clients, np.ones(size, np.int64), *found[1:])
        finishing = list(combinations(range(size), int(np.rint(size * (1 - fraction)))))
        for kept in map(list, finishing):
            arrives = np.isin(np.arange(size), kept)
            expected[found.clients[arrives]] += (
                np.prod(np.where(mask, chance, 1 - chance))
                / len(finishing)
                * weights(chosen, drawn[arrives], SHARE, None, size, stragglers)
            )
    np.testing.assert_allclose(expected, SHARE, rtol=1e-12)
    assert chance.sum() == pytest.approx(count)
    assert (chance > 0).all()
    assert (chance <= 1).all()


def test_the_selected_carry_their_probability() -> None:
    chosen = scheme("importance", clients_per_round=2, mix=0.5)
    losses = np.array([1.0, 2.0, 3.0, 4.0])
    everyone = Drawn(EVERYONE, np.ones(4, np.int64))
    found = select(chosen, everyone, losses, {}, facts(), 1)
    chance = chosen.probabilities(EVERYONE, losses, SHARE)
    np.testing.assert_array_equal(found.expected, chance[found.clients])
    np.testing.assert_array_equal(
        weights(chosen, found, SHARE, None), SHARE[found.clients] / chance[found.clients]
    )


@pytest.mark.parametrize("utility", [[1.0, 2.0, 3.0, 40.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 5.0, 6.0]])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_optimal_probabilities_minimise_the_variance(utility: list[float], count: int) -> None:
    """Longhand: clients are taken for certain as long as K u_i / sum u exceeds 1 for one of the others.
    No exchange of probability between two clients lowers sum_i u_i^2 / o_i.
    """
    u = np.array(utility)
    found = optimal_probabilities(u, count)
    assert found.sum() == pytest.approx(count)
    certain: set[int] = set()
    while True:
        others = [i for i in range(4) if i not in certain]
        left = count - len(certain)
        total = u[others].sum()
        if not total:
            break
        new = {i for i in others if left * u[i] / total > 1}
        if not new:
            expected = [1.0 if i in certain else left * u[i] / total for i in range(4)]
            np.testing.assert_allclose(found, expected, rtol=1e-13)
            break
        certain |= new

    def variance(chance: NDArray[np.float64]) -> float:
        return float(sum(v * v / q for v, q in zip(u, chance, strict=True) if v))

    for i, j in combinations(range(4), 2):
        for sign in (1, -1):
            moved = found.copy()
            moved[[i, j]] += sign * 1e-4, -sign * 1e-4
            if (moved > 0).all() and (moved <= 1).all():
                assert variance(moved) >= variance(found) - 1e-12


def test_importance_sampling_with_all_of_the_mixture_is_uniform() -> None:
    chosen = scheme("importance", clients_per_round=2, mix=1)
    np.testing.assert_array_equal(
        chosen.probabilities(EVERYONE, np.array([1.0, 9.0, 2.0, 7.0]), SHARE), [0.5] * 4
    )


def test_oort_that_only_explores_samples_uniformly() -> None:
    chosen = scheme("oort", clients_per_round=2, epsilon_start=1, epsilon_min=1)
    for seed in range(20):
        uniform = generator(seed, "selection of clients", 1).choice(4, 2, replace=False)
        assert selected(chosen, seed=seed) == sorted(uniform.tolist())


def explored(chosen: Oort, losses: list[float], seconds: list[float] | None = None) -> Any:
    """The state after a first round in which all four clients took part."""
    times = None if seconds is None else np.array(seconds)
    return chosen.update_state(
        chosen.start_state(4), Outcome(EVERYONE, losses=np.array(losses), seconds=times), facts()
    )


def test_oorts_utility_is_the_papers() -> None:
    chosen = scheme("oort", clients_per_round=2, preferred_seconds=2.0, alpha=2.0)
    state = explored(chosen, [0.1, 0.2, 0.3, 8.0], [1.0, 2.0, 4.0, 8.0])
    expected = []
    statistical = [40 * 0.1, 30 * 0.2, 20 * 0.3, 10 * 8.0]
    for gain, seconds in zip(statistical, [1.0, 2.0, 4.0, 8.0], strict=True):
        value = min(gain, np.quantile(statistical, 0.95)) + np.sqrt(0.1 * np.log(5) / 1)
        expected.append(value * (2.0 / seconds) ** 2 if seconds > 2.0 else value)
    np.testing.assert_allclose(chosen.utilities(EVERYONE, state, 5), expected, rtol=1e-13)


def test_oort_exploits_clients_of_nearly_the_largest_utility() -> None:
    chosen = scheme("oort", clients_per_round=2, epsilon_start=0, epsilon_min=0)
    state = explored(chosen, [1.0, 1.0, 1.52, 0.1])
    # Utilities near 40, 30, 30.4 and 1: the second largest is 30.4, and 30 is within 5 % of it.
    found = {tuple(selected(chosen, state=state, known=facts(2), seed=seed)) for seed in range(40)}
    assert found == {(0, 1), (0, 2), (1, 2)}


def test_oort_explores_its_share_of_the_cohort() -> None:
    chosen = scheme("oort", clients_per_round=2, epsilon_start=0.5, epsilon_decay=1.0)
    state = chosen.update_state(
        chosen.start_state(4), Outcome(np.array([0, 1]), losses=np.array([1.0, 9.0])), facts()
    )
    for seed in range(10):
        first, second = selected(chosen, state=state, known=facts(2), seed=seed)
        assert first == 1
        assert second in {2, 3}
    assert chosen.epsilon(1) == 0.5
    assert scheme("oort", clients_per_round=2).epsilon(3) == pytest.approx(0.9 * 0.98**2)
    assert scheme("oort", clients_per_round=2).epsilon(1000) == 0.2


def test_the_pacer_waits_longer_where_utility_falls() -> None:
    chosen = scheme("oort", clients_per_round=2, preferred_seconds=2.0, pacer_seconds=0.5, pacer_rounds=2)
    state, preferred = chosen.start_state(4), []
    for round, loss in enumerate([4.0, 4.0, 3.0, 3.0, 9.0, 9.0], start=1):
        outcome = Outcome(np.array([0]), losses=np.array([loss]), seconds=np.array([1.0]))
        state = chosen.update_state(state, outcome, facts(round))
        preferred.append(float(state["preferred_seconds"][0]))
    assert preferred == [2.0, 2.0, 2.0, 2.5, 2.5, 2.5]


def distances(points: list[list[float]]) -> NDArray[np.float64]:
    vectors = np.array(points)
    return np.linalg.norm(vectors[:, None] - vectors, axis=-1)


def test_divfl_takes_one_client_of_each_cluster() -> None:
    clustered = distances([[0, 0], [10, 0], [0.1, 0], [10, 0.1]])
    taken = selected(scheme("divfl", clients_per_round=2), clustered)
    assert {client % 2 for client in taken} == {0, 1}


def test_divfl_is_the_greedy_choice_of_facility_location() -> None:
    points = generator(0, "points").standard_normal((4, 3)).tolist()
    gaps = distances(points)

    def cost(subset: set[int]) -> float:
        return float(sum(min(gaps[k, i] for i in subset) for k in range(4)))

    greedy: set[int] = set()
    for count in range(1, 5):
        greedy |= {min(set(range(4)) - greedy, key=lambda client: cost(greedy | {client}))}
        assert selected(scheme("divfl", clients_per_round=count), gaps) == sorted(greedy)


def test_fedcs_takes_all_that_a_long_deadline_allows_and_else_the_fastest() -> None:
    times = Timing(np.ones(4), np.array([4.0, 1.0, 2.0, 8.0]), np.ones(4))
    generous = scheme("fedcs", clients_per_round=4, deadline_seconds=100)
    assert selected(generous, known=facts(timing=times)) == [0, 1, 2, 3]
    few = scheme("fedcs", clients_per_round=2, deadline_seconds=100)
    assert selected(few, known=facts(timing=times)) == [1, 2]
    # Downloads take 1, client 1 is done at 2, client 2 at 3, client 0 at 5: 6 in all.
    for deadline, taken in ((2.9, []), (3.0, [1]), (4.0, [1, 2]), (6.0, [0, 1, 2]), (10.0, [0, 1, 2, 3])):
        tight = scheme("fedcs", clients_per_round=4, deadline_seconds=deadline)
        assert selected(tight, known=facts(timing=times)) == taken


def test_fedcs_estimates_uploads_one_after_another() -> None:
    times = Timing(np.zeros(4), np.zeros(4), np.array([3.0, 1.0, 2.0, 4.0]))
    for deadline, taken in ((1.0, [1]), (3.0, [1, 2]), (6.0, [0, 1, 2]), (10.0, [0, 1, 2, 3])):
        chosen = scheme("fedcs", clients_per_round=4, deadline_seconds=deadline)
        assert selected(chosen, known=facts(timing=times)) == taken


@pytest.mark.parametrize("name", SCHEMES)
def test_a_resumed_run_selects_the_same_clients(name: str) -> None:
    whole = simulated(*SCHEMES[name])
    saved, whole_reports = {0: whole.checkpoint()}, []
    for round in range(1, 6):
        whole_reports.append(whole.advance())
        saved[round] = whole.checkpoint()
    for stop in (0, 3):
        second = simulated(*SCHEMES[name])
        second.restore(saved[stop])
        reports = [second.advance() for _ in range(stop, 5)]
        assert second.checkpoint() == whole.checkpoint()
        assert [report.bytes_down for report in reports] == [
            report.bytes_down for report in whole_reports[stop:]
        ]


@pytest.mark.parametrize("name", SCHEMES)
def test_clients_that_cannot_be_reached_are_not_selected(name: str) -> None:
    participation, _ = SCHEMES[name]
    chosen = scheme(**participation)
    share = np.full(8, 1 / 8)
    reachable = TraceAvailable(np.array([1, 4, 6]))
    for round in range(1, 6):
        drawn = draw(chosen, share, 0, round, reachable)
        assert set(drawn.clients.tolist()) <= {1, 4, 6}


NUMBER, MODEL = 8, 8 * 610
"""Bytes of a number, and of a softmax regression with 610."""


@pytest.mark.parametrize(
    ("name", "asked", "reported", "bytes_each"),
    [
        ("pow-d", 5, 0, NUMBER),
        ("rpow-d", 0, 2, NUMBER),
        ("oort", 0, 3, NUMBER),
        ("divfl", 5, 0, MODEL),
        ("fedcs", 0, 0, 0),
    ],
)
def test_the_cost_of_selection_is_counted(name: str, asked: int, reported: int, bytes_each: int) -> None:
    report = simulated(*SCHEMES[name]).advance()
    trained = SCHEMES[name][0]["clients_per_round"]
    assert report.bytes_down == max(asked, trained) * MODEL
    assert report.bytes_up == trained * MODEL + (asked + reported) * bytes_each
    assert report.extra.get("selection_evaluations", 0) == asked + reported


def test_importance_by_loss_asks_everyone_and_by_norm_nobody() -> None:
    by_loss = simulated(*SCHEMES["importance by loss"]).advance()
    assert by_loss.bytes_down == 8 * MODEL
    assert by_loss.extra["selection_evaluations"] == 8
    by_norm = simulated(*SCHEMES["importance by norm"]).advance()
    assert by_norm.bytes_down == by_norm.bytes_up
    assert "selection_evaluations" not in by_norm.extra


def test_stored_values_are_the_clients_own() -> None:
    """Update norms are those of the changes, and losses those at the model the round began with."""
    simulation = Simulation(
        specification(
            QUADRATIC,
            participation={"kind": "importance", "clients_per_round": 4, "weighting": "unbiased"},
            evaluation={"record_parameters": True},
            systems={"steps": None},
            local={"lr": 0.05, "steps": 1},
        ),
        seed=0,
    )
    problem = QUADRATIC["problem"]["dataset"]
    x = np.array(problem["x0"])
    simulation.advance()
    norms = simulation.state.server.own["select"]["update_norm"]
    expected = [
        np.linalg.norm(0.05 * (np.array(client["H"]) @ x - np.array(client["e"])))
        for client in problem["clients"]
    ]
    np.testing.assert_allclose(norms, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("participation", "systems", "words"),
    [
        ({"kind": "fedcs", "clients_per_round": 2, "deadline_seconds": 5}, {}, "requires `devices`"),
        ({"kind": "oort", "clients_per_round": 2, "preferred_seconds": 5}, {}, "requires `devices`"),
        ({"kind": "power_of_choice", "clients_per_round": 3, "candidates": 2}, {}, "between K = 3"),
        ({"kind": "divfl", "clients_per_round": 9}, {}, "use at most 8"),
        (
            {"kind": "oort", "clients_per_round": 2, "weighting": "unbiased"},
            {},
            "depends on the training",
        ),
        (
            {"kind": "importance", "clients_per_round": 2},
            {"stragglers": {"fraction": 0.75, "policy": "drop"}},
            "losing a whole cohort",
        ),
        (
            {"kind": "importance", "clients_per_round": 2},
            {"availability": {"kind": "bernoulli", "probability": 0.5}},
            "be drawn",
        ),
    ],
)
def test_combinations_without_a_meaning_are_refused(
    participation: Document, systems: Document, words: str
) -> None:
    with pytest.raises(SpecificationError, match=words):
        simulated(participation, systems)


def test_the_two_kinds_of_losses_are_two_schemes() -> None:
    exact, stored = (
        PowerOfChoice(kind="power_of_choice", clients_per_round=1, candidates=2, losses=how)
        for how in ("exact", "stored")
    )
    assert (exact.asks(), stored.asks()) == ("loss", None)
    assert not exact.observes()
    assert stored.observes() == {"loss"}
    assert Importance(kind="importance", clients_per_round=1).observes() == {"update_norm"}


def test_norms_of_changes_are_known_where_changes_are_only_summed() -> None:
    """`parallel` sums changes as clients train, unless each is needed."""
    kept = []
    for engine in ("reference", "parallel"):
        spec = specification(
            SYNTHETIC,
            participation={"kind": "importance", "clients_per_round": 4, "weighting": "unbiased"},
            evaluation={"measures": []},
            execution={"engine": engine},
        )
        simulation = Simulation(spec, seed=0)
        for _ in range(2):
            simulation.advance()
        kept.append(simulation.state.server.own["select"]["update_norm"])
    np.testing.assert_allclose(kept[0], kept[1], rtol=1e-9)
    assert (kept[0] > 0).any()
