"""Exact methods come to rest at the optimum of quadratics, or the combination is rejected.

They never rest anywhere else.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import cycle, islice, product
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedcore import Simulation
from fedcore.algorithms import ALGORITHMS
from fedcore.block import kind_of
from fedcore.compression import COMPRESSORS, NoCompression
from fedcore.compression.base import CompressorSpec, Sparsifier
from fedcore.errors import SpecificationError
from tests.builders.specifications import Document, quadratics, specification

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
OF_SHARES = {"fedsvrg", "fedavg", "fednova"}
"""Methods that rest at the optimum of sum_i p_i F_i."""
WITH_EVERYONE: dict[str, Document] = {
    **EXACT,
    "fedlin": {"kind": "fedlin"},
    "fedsvrg": {"kind": "fedsvrg"},
    "feddane": {"kind": "feddane", "mu": 0.1},
    "fedavg": {"kind": "fedavg", "variance_reduction": True},
    "fednova": {"kind": "fednova", "variance_reduction": True},
}
"""Exact methods if everyone takes part."""
EXCHANGING = ("fedlin", "fedsvrg", "feddane")
"""Their clients compress gradients, which do not vanish at the optimum."""
CLOSE = {
    "fedprox": "close to the optimum, never at it",
    "pooled": "trained on the sum of all losses itself: tests/algorithms/test_pooled.py",
    "mimelite": "exact with one step, but the changes of clients do not vanish at the optimum",
}
"""Methods whose fixed point mentions the optimum and that no test here is about."""


def choices(field: FieldInfo) -> list[Any]:
    """The values of a field that has few: a switch, or one of several words."""
    kinds = (field.annotation, *get_args(field.annotation))
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if field.annotation is bool:
        return [False, True]
    return [field.default, *(word for word in words if word != field.default)] if words else []


def forms_of(compressor: type[CompressorSpec]) -> Iterator[Document]:
    """The compressor in all its forms, with and without error feedback of each kind."""
    level = {"k": 2} if issubclass(compressor, Sparsifier) else dict(compressor.example)
    fields = {name: choices(field) for name, field in compressor.model_fields.items() if name != "kind"}
    several = {name: values for name, values in fields.items() if len(values) > 1}
    for values in product(*several.values()):
        document = {"kind": kind_of(compressor), **level, **dict(zip(several, values, strict=True))}
        with suppress(ValidationError):
            compressor.model_validate(document)
            yield document


FORMS = [
    form for compressor in COMPRESSORS if compressor is not NoCompression for form in forms_of(compressor)
]


def optimum(weights: np.ndarray) -> np.ndarray:
    """[D] the minimiser of sum_i w_i F_i."""
    return np.linalg.solve(np.tensordot(weights, HESSIANS, 1), weights @ LINEAR)


def rest(algorithm: Document, **changes: Any) -> np.ndarray | None:
    """[D] where a run has come to rest; None if the combination is rejected."""
    try:
        spec = specification(BASE, algorithm=algorithm, **changes)
    except SpecificationError:
        return None
    simulation, moved = Simulation(spec, 0), np.inf
    while not simulation.finished and moved > 1e-9:
        # Rounds in which nobody takes part move nothing.
        start = simulation.state.server.x.numpy().copy()
        for _ in range(10):
            if not simulation.finished:
                simulation.advance()
        moved = float(np.abs(simulation.state.server.x.numpy() - start).max())
    assert moved < 1e-8, "it has not come to rest"
    return simulation.state.server.x.numpy()


def rests_under(algorithm: str, weighting: str, schemes: Mapping[str, Document]) -> int:
    """In how many of the schemes it rests at the optimum; it is rejected in the others.

    FedSplit and VRLSGD rest at that of the objective they weigh by, the others at that of the
    uniform sum whatever they weigh by.
    """
    shared = algorithm in ("fedsplit", "vrlsgd") and weighting == "samples"
    expected, found = optimum(WEIGHT / WEIGHT.sum() if shared else np.full(4, 1 / 4)), 0
    for name, scheme in schemes.items():
        reached = rest(EXACT[algorithm], participation={**scheme, "weighting": weighting})
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
    reached = rest(EXACT[algorithm], participation=OWN_WEIGHTS["S1"])
    assert reached is not None
    np.testing.assert_allclose(reached, optimum(np.full(4, 1 / 4)), rtol=1e-6, atol=1e-7)
    assert rest(EXACT[algorithm], participation=OWN_WEIGHTS["S2"]) is None


def assert_rests_compressed(algorithm: str, form: Document, link: str) -> bool:
    """It rests at the optimum, or the combination is rejected, as it must be, or documented as close."""
    document = WITH_EVERYONE[algorithm]
    compressor = COMPRESSORS.validate(form)
    needs_all = algorithm in ("fedsplit", "vrlsgd") and not compressor.build(3).telescopes()
    expected = optimum(WEIGHT / WEIGHT.sum() if algorithm in OF_SHARES else np.full(4, 1 / 4))
    if link == "uplink" and algorithm in EXCHANGING and not compressor.uplink_only:
        assert "close to it if clients compress" in ALGORITHMS.validate(document).fixed_point
        moved = moves_from(expected, document, form)
        assert moved > 1e-4, "exact: say so in its fixed point"
        return True
    reached = rest(document, compression={link: form})
    if link == "downlink" and (compressor.uplink_only or needs_all):
        assert reached is None
        return False
    assert reached is not None
    np.testing.assert_allclose(reached, expected, rtol=1e-6, atol=1e-7, err_msg=str(form))
    return True


def moves_from(x: np.ndarray, algorithm: Document, form: Document) -> float:
    """How far the model moves in a few rounds from `x` [D] under a compressed uplink."""
    start = {"kind": "quadratic", "clients": CLIENTS, "x0": x.tolist()}
    changes: Document = {"problem": {"dataset": start}, "rounds": 5, "compression": {"uplink": form}}
    simulation = Simulation(specification(BASE, algorithm=algorithm, **changes), 0)
    while not simulation.finished:
        simulation.advance()
    return float(np.abs(simulation.state.server.x.numpy() - x).max())


def test_no_method_that_claims_the_optimum_is_left_out() -> None:
    claim = {kind_of(member) for member in ALGORITHMS if "the optimum" in member.fixed_point}
    assert claim == {document["kind"] for document in WITH_EVERYONE.values()} | CLOSE.keys()


@pytest.mark.parametrize("algorithm", WITH_EVERYONE)
def test_an_exact_method_rests_at_the_optimum_whatever_compression_takes_from_messages(
    algorithm: str,
) -> None:
    """Every form of every compressor, each at one link; from method to method at the other one."""
    links = cycle(["uplink", "downlink"] if [*WITH_EVERYONE].index(algorithm) % 2 else ["downlink", "uplink"])
    for form, link in zip(FORMS, links, strict=False):
        if not assert_rests_compressed(algorithm, form, link):
            assert assert_rests_compressed(algorithm, form, "uplink")


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", WITH_EVERYONE)
def test_an_exact_method_rests_at_the_optimum_under_every_compressor_at_every_link(algorithm: str) -> None:
    for form, link in product(FORMS, ["uplink", "downlink"]):
        assert_rests_compressed(algorithm, form, link)


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
            "average of the clients",
        ),
        (
            {"participation": {"kind": "uniform", "clients_per_round": 2, "weighting": "original"}},
            "/participation/weighting",
            "average of the clients",
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
