"""Limit cases as identities: algorithms that are FedAvg in a limit move as FedAvg does, whoever
takes part and however they weigh.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import SpecificationError
from tests.builders.specifications import QUADRATIC, Document, specification

BASE: Document = {key: value for key, value in QUADRATIC.items() if key != "systems"}
SCHEMES: dict[str, Document] = {
    "full": {"kind": "full"},
    "uniform": {"kind": "uniform", "clients_per_round": 3},
    "S1": {"kind": "with_replacement", "clients_per_round": 3},
    "S2": {"kind": "without_replacement", "clients_per_round": 2},
    "transformed S2": {"kind": "without_replacement", "clients_per_round": 2, "transformed": True},
    "by share": {"kind": "by_share", "clients_per_round": 2},
    "bernoulli": {"kind": "bernoulli", "probability": 0.6},
    "bernoulli per client": {"kind": "bernoulli", "probability": [0.9, 0.3, 0.6, 0.5]},
    "trace with repeats": {"kind": "trace", "rounds": [[0, 0, 3], [], [1, 2, 2, 2], [3], [0, 1, 2, 3]]},
}
WEIGHTINGS = ("samples", "uniform", "unbiased", "original")
SYSTEMS: dict[str, Document] = {
    "everyone on time": {},
    "stragglers dropped": {"stragglers": {"fraction": 0.4, "policy": "drop"}},
    "half dropped": {"stragglers": {"fraction": 0.5, "policy": "drop"}},
    "a deadline": {
        "devices": {"steps_per_second": {"kind": "per_client", "values": [1.0, 2.0, 0.5, 4.0]}},
        "deadline": {"seconds": 3.5, "policy": "drop"},
    },
    "out of reach": {"availability": {"kind": "trace", "rounds": [[0, 1, 3], [2], [0, 1, 2, 3], [1, 2]]}},
}
COMPRESSIONS: dict[str, Document] = {
    "dense": {},
    "top-k up": {"uplink": {"kind": "top_k", "k": 2, "error_feedback": False}},
    "rand-k up, top-k down": {
        "uplink": {"kind": "rand_k", "k": 2},
        "downlink": {"kind": "top_k", "k": 1, "error_feedback": False},
    },
    "signs up": {"uplink": {"kind": "sign", "error_feedback": False}},
    "error feedback": {
        "uplink": {"kind": "qsgd", "levels": 3, "error_feedback": True},
        "downlink": {"kind": "top_k", "k": 1, "error_feedback": True},
    },
}
THREE: Document = {"local": {"lr": 0.05, "steps": 3}}
ONE: Document = {"local": {"lr": 0.05, "steps": 1}}


def trajectory(spec: ExperimentSpec, seed: int = 3) -> np.ndarray:
    """[T, D] the server's model after each round."""
    simulation, models = Simulation(spec, seed), []
    while not simulation.finished:
        simulation.advance()
        models.append(simulation.state.server.x.numpy())
    return np.array(models)


def settings(compressions: dict[str, Document]) -> Iterator[Document]:
    """Every scheme with every weighting, and every two of scheme, weighting and kind of lateness,
    dense; where everyone is on time, every two of scheme, weighting and compression.

    Both algorithms are given the same cohort, weights and links by the same code, so that three of
    these together are no case of their own.
    """
    systems = list(SYSTEMS.values())
    links = [links for name, links in compressions.items() if name != "dense"]
    for i, participation in enumerate(SCHEMES.values()):
        for j, weighting in enumerate(WEIGHTINGS):
            weighed = {**participation, "weighting": weighting}
            # Four weightings by two consecutive kinds each are all five.
            for late in (i + 2 * j, i + 2 * j + 1):
                yield {"participation": weighed, "systems": systems[late % len(systems)]}
            if links:
                yield {"participation": weighed, "compression": links[(i + j) % len(links)]}


@cache
def of_fedavg(changes: str) -> np.ndarray:
    """Its trajectory under changes in JSON; several algorithms are compared with it."""
    spec = accepted({"kind": "fedavg"}, json.loads(changes))
    assert spec is not None
    return trajectory(spec)


def accepted(algorithm: Document, changes: Document, **more: Any) -> ExperimentSpec | None:
    """The specification, None if the combination is rejected."""
    try:
        return specification(BASE, algorithm=algorithm, **{"rounds": 5, **changes, **more})
    except SpecificationError:
        return None


WITHOUT_FEEDBACK = {name: links for name, links in COMPRESSIONS.items() if name != "error feedback"}
IDENTITIES: dict[str, tuple[Document, Document, dict[str, Document]]] = {
    "fednova with equal steps": ({"kind": "fednova"}, THREE, COMPRESSIONS),
    "fednova with equal steps, by its normaliser": (
        {"kind": "fednova", "tau_eff": "normaliser"},
        THREE,
        COMPRESSIONS,
    ),
    "fednova with equal steps and momentum": (
        {"kind": "fednova", "tau_eff": "normaliser"},
        {"local": {"lr": 0.05, "steps": 3, "optimizer": {"momentum": 0.5}}},
        {},
    ),
    "fedprox without its term": ({"kind": "fedprox", "mu": 0.0}, THREE, COMPRESSIONS),
    "fedlin with one full step": ({"kind": "fedlin"}, ONE, {}),
    # It compresses gradients where FedAvg compresses models: a factor of lr, which compressors
    # without feedback commute with.
    "fedsvrg with one full step": ({"kind": "fedsvrg"}, ONE, WITHOUT_FEEDBACK),
    "scaffold 1 with one full step, from zero": (
        {"kind": "scaffold", "option": 1},
        {**ONE, "rounds": 1},
        COMPRESSIONS,
    ),
    "fedcm of its own gradients alone": ({"kind": "fedcm", "alpha": 1.0}, THREE, COMPRESSIONS),
    "fedavgm without momentum": ({"kind": "fedavgm", "beta": 0.0}, THREE, COMPRESSIONS),
}


def equal_to_fedavg(name: str, every: int) -> int:
    """How many of each `every` settings are accepted, in all of which it moves as FedAvg does."""
    algorithm, length, compressions = IDENTITIES[name]
    compared = 0
    for changes in islice(settings(compressions), 0, None, every):
        mine = accepted(algorithm, {**changes, **length})
        if mine is None or (mine.systems.deadline and mine.build().gradients_per_step() != 1):
            # A step with several gradients takes as many times as long, and misses another deadline.
            continue
        expected = of_fedavg(json.dumps({**changes, **length}))
        np.testing.assert_allclose(trajectory(mine), expected, rtol=1e-10, atol=1e-12, err_msg=f"{changes}")
        compared += 1
    return compared


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_algorithm_is_fedavg_in_its_limit(name: str) -> None:
    """Every fifth setting: each scheme, weighting, kind of lateness and compression."""
    assert equal_to_fedavg(name, every=5) >= 8, "few combinations are rejected"


@pytest.mark.nightly
@pytest.mark.parametrize("name", IDENTITIES)
def test_an_algorithm_is_fedavg_in_its_limit_in_every_setting(name: str) -> None:
    assert equal_to_fedavg(name, every=1) >= 40, "few combinations are rejected"


def test_feddyn_without_its_regulariser_adds_all_earlier_changes() -> None:
    """As alpha -> 0 clients train as in FedAvg and h/alpha -> -(1/N) sum_t sum_S Delta_k: FedAvg's
    step plus all changes so far.
    """
    tiny = {"kind": "feddyn", "alpha": 1e-7}
    full = {"participation": {"kind": "full", "weighting": "uniform"}}
    nesterov = {"kind": "momentum", "beta": 1 - 1e-9, "nesterov": True}
    mine, other = (
        accepted(tiny, {**full, **THREE}),
        accepted({"kind": "fedavg"}, {**full, **THREE}, server=nesterov),
    )
    assert mine is not None
    assert other is not None
    np.testing.assert_allclose(trajectory(mine), trajectory(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighting", ["samples", "uniform", "unbiased"])
def test_the_first_round_of_feddyn_adds_the_mean_change_of_all_clients_to_fedavg(weighting: str) -> None:
    """x + sum_S w_k Delta_k + (1/N) sum_S Delta_k, in the limit alpha -> 0 and whoever takes
    part.
    """
    changes = {"participation": {"kind": "bernoulli", "probability": 0.6, "weighting": weighting}, **THREE}
    start = np.array(BASE["problem"]["dataset"]["x0"])
    spec = specification(BASE, algorithm={"kind": "feddyn", "alpha": 1e-9}, rounds=1, **changes)
    fedavg = specification(BASE, algorithm={"kind": "fedavg"}, rounds=1, **changes)
    simulation = Simulation(fedavg, 3)
    opened = simulation.begin()
    cohort = opened.flow.cohort
    assert cohort is not None
    weights = cohort.weights.numpy()
    moved = [trajectory(_only(fedavg, int(client)))[0] - start for client in opened.flow.clients]
    expected = start + weights @ np.array(moved) + np.sum(moved, 0) / 4
    np.testing.assert_allclose(trajectory(spec)[0], expected, rtol=1e-7)


def _only(spec: ExperimentSpec, client: int) -> ExperimentSpec:
    """The same with this client alone in the first round, so that x moves by its change."""
    alone = specification(BASE, participation={"kind": "trace", "rounds": [[client]]}, rounds=1)
    return spec.model_copy(update={"participation": alone.participation})
