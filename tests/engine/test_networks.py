"""Networks with dropout, batch norm and frozen layers, trained by every engine."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedcore import Simulation
from fedcore.settings import settings
from tests.documents import DIGITS_CNN, Document, merged, specification
from tests.support.resuming import assert_resumable_at_every_round

ENGINES = ("reference", "parallel", "vectorised")
POLICIES = ("average", "local", "frozen", "group")
PARAMETERS = {
    "trained_head": 1_090,
    "batch_normalised": 40 + 8 + 222 + 12 + 70,
    "normalised_and_dropped": 40 + 8 + 222 + 12 + 70,
    "EveryDropout": 460,
    "forgetful": 650,
}
NORMS = 20
"""Parameters of batch norm; there are as many means and variances."""
STATISTICS = NORMS + 2
"""With the number of batches of each layer."""


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEDQ_MODELS_ALLOWED", "tests.models.factories:*")
    settings.cache_clear()
    yield
    settings.cache_clear()


def own(factory: str, **others: Any) -> Document:
    count = PARAMETERS.get(factory, 650) - NORMS * (others.get("batch_norm") in ("local", "frozen"))
    return {
        "kind": "import",
        "path": f"tests.models.factories:{factory}",
        "parameters": count,
        "l2": 0.01,
        **others,
    }


def network(model: Document, **changes: Any) -> Document:
    """Ragged cohorts with short last batches, and one batch of all samples."""
    problem = {**DIGITS_CNN["problem"], "model": model}
    return merged({**DIGITS_CNN, "problem": problem, "evaluation": {"measures": ["train_loss"]}}, changes)


def played(document: Document, engine: str, seed: int = 0) -> Simulation:
    simulation = Simulation(specification(document, execution={"engine": engine}), seed)
    while not simulation.finished:
        simulation.advance()
    return simulation


def assert_equal(first: Simulation, second: Simulation, atol: float) -> None:
    ours, theirs = first.model(), second.model()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol)


CASES = {
    "frozen body": own("trained_head"),
    "dropout": own("forgetful"),
    "every dropout": own("EveryDropout"),
    **{policy: own("batch_normalised", batch_norm=policy) for policy in POLICIES},
    "average with dropout": own("normalised_and_dropped", batch_norm="average"),
}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedsvrg"])
@pytest.mark.parametrize("case", CASES)
def test_engines_agree_on_networks_of_every_kind(case: str, algorithm: str) -> None:
    document = network(CASES[case]) | {"algorithm": {"kind": algorithm}}
    expected = played(document, "reference")
    for engine in ENGINES[1:]:
        assert_equal(played(document, engine), expected, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_a_network_goes_on_from_any_round_to_the_bit(case: str, engine: str) -> None:
    document = network(
        CASES[case], execution={"engine": engine}, participation={"kind": "uniform", "clients_per_round": 2}
    )
    assert_resumable_at_every_round(specification(document, rounds=3))
