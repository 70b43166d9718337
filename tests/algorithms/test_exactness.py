"""Exact methods come to rest at the optimum of quadratics, or the combination is rejected.

They never rest anywhere else.
"""

from collections.abc import Mapping
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import pytest

from fedcore import Simulation
from fedcore.errors import SpecificationError
from tests.documents import Document, quadratics, specification

CLIENTS = quadratics(4, 3)
HESSIANS, LINEAR = (
    np.array([client["H"] for client in CLIENTS]),
    np.array([client["e"] for client in CLIENTS]),
)
WEIGHT = np.array([client["weight"] for client in CLIENTS])
BASE: Document = {
    "name": "exact",
    "problem": {"dataset": {"kind": "quadratic", "clients": CLIENTS, "x0": [0.0, 0.0, 0.0]}},
    "local": {"lr": 0.15, "steps": 4},
    "rounds": 500,
    "evaluation": {"measures": [], "every": 500},
}
EXACT: dict[str, Document] = {
    "fedsplit": {"kind": "fedsplit", "s": 1.0},
    "vrlsgd": {"kind": "vrlsgd"},
    "feddyn": {"kind": "feddyn", "alpha": 2.0},
    "feddc": {"kind": "feddc", "alpha": 0.5},
    "scaffold 1": {"kind": "scaffold", "option": 1},
    "scaffold 2": {"kind": "scaffold"},
}
SCHEMES: dict[str, Document] = {
    "full": {"kind": "full"},
    "uniform": {"kind": "uniform", "clients_per_round": 2},
    "S1": {"kind": "with_replacement", "clients_per_round": 3},
    "by share": {"kind": "by_share", "clients_per_round": 2},
    "bernoulli": {"kind": "bernoulli", "probability": 0.6},
    "trace with repeats": {"kind": "trace", "rounds": [[0, 0, 1], [2, 3, 3, 3], [1, 2], [0]] * 125},
}
WEIGHTINGS = ("samples", "uniform", "unbiased", "original")
OWN_WEIGHTS: dict[str, Document] = {
    "S1": {"kind": "with_replacement", "clients_per_round": 3},
    "S2": {"kind": "without_replacement", "clients_per_round": 2},
}
"""Without `weighting`, those of the papers: S2 scales the model, and with one it is `uniform`."""
LINKS: dict[str, Document] = {
    "top-k": {"kind": "top_k", "k": 2},
    "rand-k": {"kind": "rand_k", "k": 2},
    "qsgd": {"kind": "qsgd", "levels": 4},
    "sign": {"kind": "sign"},
}


def optimum(weights: np.ndarray) -> np.ndarray:
    """[D] the minimiser of sum_i w_i F_i."""
    return np.linalg.solve(np.tensordot(weights, HESSIANS, 1), weights @ LINEAR)


def rest(algorithm: str, **changes: Any) -> np.ndarray | None:
    """[D] where a run has come to rest; None if the combination is rejected."""
    try:
        spec = specification(BASE, algorithm=EXACT[algorithm], **changes)
    except SpecificationError:
        return None
    simulation, moved = Simulation(spec, 0), np.inf
    while not simulation.finished and moved > 1e-9:
        # Rounds in which nobody takes part move nothing.
        start = simulation._server.x.numpy().copy()
        for _ in range(10):
            if not simulation.finished:
                simulation.advance()
        moved = float(np.abs(simulation._server.x.numpy() - start).max())
    assert moved < 1e-8, "it has not come to rest"
    return simulation._server.x.numpy()


def rests_under(algorithm: str, weighting: str, schemes: Mapping[str, Document]) -> int:
    """In how many of the schemes it rests at the optimum; it is rejected in the others.

    FedSplit and VRLSGD rest at that of the objective they weigh by, the others at that of the
    uniform sum whatever they weigh by.
    """
    shared = algorithm in ("fedsplit", "vrlsgd") and weighting == "samples"
    expected, found = optimum(WEIGHT / WEIGHT.sum() if shared else np.full(4, 1 / 4)), 0
    for name, scheme in schemes.items():
        reached = rest(algorithm, participation={**scheme, "weighting": weighting})
        if reached is not None:
            np.testing.assert_allclose(reached, expected, rtol=1e-6, atol=1e-7, err_msg=name)
            found += 1
    return found


@pytest.mark.parametrize("algorithm", EXACT)
def test_an_exact_method_rests_at_the_optimum_whoever_takes_part(algorithm: str) -> None:
    """Each scheme once, under one weighting after the other."""
    weightings = islice(cycle(WEIGHTINGS), [*EXACT].index(algorithm), None)
    found = [
        rests_under(algorithm, weighting, {name: scheme})
        for weighting, (name, scheme) in zip(weightings, SCHEMES.items(), strict=False)
    ]
    assert sum(found) >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("algorithm", EXACT)
def test_an_exact_method_rests_at_the_optimum_under_every_scheme_and_weighting(
    algorithm: str, weighting: str
) -> None:
    undefined = algorithm in ("fedsplit", "vrlsgd") and weighting in ("unbiased", "original")
    assert rests_under(algorithm, weighting, SCHEMES) >= (0 if undefined else 4)


@pytest.mark.parametrize("algorithm", EXACT)
def test_an_exact_method_rests_at_the_optimum_under_the_weights_of_s1_and_not_those_of_s2(
    algorithm: str,
) -> None:
    reached = rest(algorithm, participation=OWN_WEIGHTS["S1"])
    assert reached is not None
    np.testing.assert_allclose(reached, optimum(np.full(4, 1 / 4)), rtol=1e-6, atol=1e-7)
    assert rest(algorithm, participation=OWN_WEIGHTS["S2"]) is None


def assert_rests_compressed(algorithm: str, link: str, feedback: bool, direction: str) -> None:
    reached = rest(algorithm, compression={direction: {**LINKS[link], "error_feedback": feedback}})
    if direction == "downlink" and not feedback and algorithm in ("fedsplit", "vrlsgd"):
        assert reached is None
    else:
        assert reached is not None
        np.testing.assert_allclose(reached, optimum(np.full(4, 1 / 4)), rtol=1e-6, atol=1e-7, err_msg=link)


@pytest.mark.parametrize("algorithm", EXACT)
def test_an_exact_method_rests_at_the_optimum_whatever_compression_takes_from_messages(
    algorithm: str,
) -> None:
    """Each compressor once, with and without feedback in both directions."""
    ways = islice(cycle(product([False, True], ["uplink", "downlink"])), [*EXACT].index(algorithm), None)
    for link, (feedback, direction) in zip(LINKS, ways, strict=False):
        assert_rests_compressed(algorithm, link, feedback, direction)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", EXACT)
def test_an_exact_method_rests_at_the_optimum_under_every_compressor_in_every_way(algorithm: str) -> None:
    for link, feedback, direction in product(LINKS, [False, True], ["uplink", "downlink"]):
        assert_rests_compressed(algorithm, link, feedback, direction)


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        (
            {"compression": {"downlink": {"kind": "rand_k", "k": 2}}},
            "/compression/downlink",
            "error_feedback: true",
        ),
        (
            {"participation": {"kind": "bernoulli", "probability": 0.5, "weighting": "unbiased"}},
            "/participation/weighting",
            "not sum to 1",
        ),
        (
            {"participation": {"kind": "uniform", "clients_per_round": 2, "weighting": "original"}},
            "/participation/weighting",
            "not sum to 1",
        ),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedsplit", "vrlsgd"])
def test_a_combination_without_the_optimum_as_fixed_point_is_rejected(
    algorithm: str, changes: Document, pointer: str, words: str
) -> None:
    with pytest.raises(SpecificationError, match=words) as refused:
        specification(BASE, algorithm=EXACT[algorithm], **changes)
    assert refused.value.pointer == pointer
