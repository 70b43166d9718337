"""The model of the best evaluated round: which round that is, and that it survives interruptions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore import RoundReport, Simulation
from fedcore.errors import SpecificationError
from fedcore.simulation import checkpoint
from fedcore.simulation.best_round import BestRound, best_round
from fedcore.simulation.rounds import COLUMNS
from fedcore.simulation.simulation import advance_batch
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, Document, merged, specification
from tests.support.networks import sized

NOISY = merged(
    QUADRATIC,
    {"problem": {"dataset": {"gradient_noise": 1.0}}, "local": {"lr": 0.2}, "rounds": 12},
)
"""Its suboptimality goes up and down, and is best before the last round."""


def report(round: int, *, diverged: bool = False, **measures: Any) -> RoundReport:
    columns = {name: measures.pop(name) for name in COLUMNS if name in measures}
    return RoundReport(0, 0, round, 1, 8, 8, 0.1, extra=measures, diverged=diverged, **columns)


def best_of(metric: str | None, *reports: RoundReport) -> BestRound | None:
    best = None
    for one in reports:
        best = best_round(best, one, metric)
    return best


@pytest.mark.parametrize("selector", ["validation_accuracy", "validation_loss"])
def test_where_samples_are_held_out_for_it_the_best_round_is_theirs(selector: str) -> None:
    values = [0.5, 0.75, 0.25] if selector == "validation_accuracy" else [0.5, 0.25, 0.75]
    measures: list[dict[str, Any]] = [
        {"test_accuracy": tested, selector: value}
        for value, tested in zip(values, [0.9, 0.1, 0.2], strict=True)
    ]
    reports = [report(round, **named) for round, named in enumerate(measures, 1)]
    assert best_of(None, *reports) == BestRound(selector, 2, values[1])


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("train_loss", [3.0, 1.0, 2.0], 2),
        ("test_accuracy", [0.1, 0.9, 0.5], 2),
        ("test_accuracy", [0.9, 0.9, 0.9], 1),
        ("train_loss", [2.0, 1.0, 1.0], 2),
        ("train_loss", [math.nan, 4.0, math.inf, 5.0], 2),
        ("train_loss", [None, None, 4.0, None], 3),
        ("train_loss", [None, math.nan], None),
    ],
)
def test_the_best_round_is_the_first_with_the_best_finite_value(
    metric: str, values: list[float | None], best: int | None
) -> None:
    measures: list[dict[str, Any]] = [{metric: value} for value in values]
    reports = [report(round, **named) for round, named in enumerate(measures, 1)]
    found = best_of(metric, *reports)
    assert (found and found.round) == best
    assert found is None or found.value == values[found.round - 1]


@given(st.lists(st.one_of(st.none(), st.integers(0, 5).map(float), st.just(math.nan)), max_size=20))
def test_the_best_round_longhand(values: list[float | None]) -> None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    reports = [report(round, test_loss=value) for round, value in enumerate(values, 1)]
    found = best_of("test_loss", *reports)
    assert (found and found.round) == (values.index(min(known)) + 1 if known else None)


def test_the_default_measure_is_the_headline_of_the_first_evaluated_round() -> None:
    first = report(2, suboptimality=3.0, objective=9.0, train_loss=1.0)
    assert best_of(None, report(1), first) == BestRound("suboptimality", 2, 3.0)
    later = report(3, suboptimality=2.0, test_accuracy=0.1)
    assert best_of(None, report(1), first, later) == BestRound("suboptimality", 3, 2.0)
    assert best_of(None, report(1, objective=1.0)) is None


def test_a_round_in_which_the_run_diverged_is_never_the_best() -> None:
    reports = report(1, test_accuracy=0.1), report(2, test_accuracy=0.9, diverged=True)
    assert best_of(None, *reports) == BestRound("test_accuracy", 1, 0.1)


LOCAL_NORMS: Document = {
    "kind": "torchvision",
    "name": "mobilenet_v2",
    "arguments": {"width_mult": 0.1},
    "batch_norm": "local",
}
RUNS: dict[str, Document] = {
    "noisy quadratics": NOISY,
    "a chosen measure": merged(SYNTHETIC, {"rounds": 6, "evaluation": {"best_model": "test_accuracy"}}),
    "every second round": merged(NOISY, {"evaluation": {"every": 2}}),
    "several models": merged(SYNTHETIC, {"algorithm": {"kind": "ifca", "clusters": 2}, "rounds": 5}),
    "batch norm of the clients' own": merged(
        DIGITS,
        {
            "problem": {
                "partition": {"clients": 3},
                "model": sized(LOCAL_NORMS, (1, 8, 8), 10),
            },
            "local": {"epochs": None, "steps": 1, "lr": 0.5},
        },
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_wherever_a_run_is_interrupted_the_same_model_is_kept(name: str) -> None:
    spec = specification(RUNS[name])
    whole, reports, models, states = Simulation(spec, 1), list[RoundReport](), [], list[bytes]()
    while not whole.finished:
        states.append(whole.checkpoint())
        reports.append(whole.advance())
        models.append({name: value.clone() for name, value in whole.model().items()})
    best = best_of(spec.evaluation.best_model, *reports)
    assert whole.facts.best == best
    assert best is not None
    torch.testing.assert_close(dict(whole.best_model()), models[best.round - 1], rtol=0, atol=0)
    for state in states:
        resumed = Simulation(spec, 1)
        resumed.restore(state)
        while not resumed.finished:
            resumed.advance()
        assert resumed.facts.best == best
        torch.testing.assert_close(dict(resumed.best_model()), dict(whole.best_model()), rtol=0, atol=0)
        assert resumed.checkpoint() == whole.checkpoint()


def test_the_best_round_of_noisy_quadratics_is_neither_the_first_nor_the_last() -> None:
    simulation = Simulation(specification(NOISY), 1)
    while not simulation.finished:
        simulation.advance()
    assert simulation.facts.best is not None
    assert 1 < simulation.facts.best.round < 12


def test_runs_of_a_batch_keep_their_own_best_models() -> None:
    spec = specification(merged(SYNTHETIC, {"rounds": 5}), execution={"engine": "vectorised"})
    alone = [Simulation(spec, seed) for seed in (0, 1)]
    for one in alone:
        while not one.finished:
            one.advance()
    together = [Simulation(spec, seed) for seed in (0, 1)]
    while not together[0].finished:
        advance_batch(together)
    for one, other in zip(alone, together, strict=True):
        assert one.facts.best is not None
        assert other.facts.best is not None
        assert one.facts.best.round == other.facts.best.round
        torch.testing.assert_close(dict(other.best_model()), dict(one.best_model()))


@pytest.mark.parametrize("choice", ["none", "train_loss", "test_accuracy"])
def test_the_choice_changes_no_bit_of_the_run(choice: str) -> None:
    def played(**evaluation: str) -> tuple[list[Any], dict[str, torch.Tensor]]:
        simulation = Simulation(specification(SYNTHETIC, evaluation=evaluation), 2)
        measures = []
        while not simulation.finished:
            found = simulation.advance()
            measures.append((found.train_loss, found.test_loss, found.test_accuracy))
        return measures, simulation.model()

    default, chosen = played(), played(best_model=choice)
    assert default[0] == chosen[0]
    torch.testing.assert_close(default[1], chosen[1], rtol=0, atol=0)


def test_with_none_no_model_is_kept() -> None:
    simulation = Simulation(specification(SYNTHETIC, evaluation={"best_model": "none"}), 0)
    simulation.advance()
    assert (simulation.facts.best, dict(simulation.best_model())) == (None, {})
    assert not [
        name for name in checkpoint.loads(simulation.checkpoint())[0] if name.startswith("best_model.")
    ]


@pytest.mark.parametrize(
    ("document", "metric", "why"),
    [
        (SYNTHETIC, "suboptimality", "only quadratic and least-squares problems have suboptimality"),
        (SYNTHETIC, "client_accuracy_std", "is not measured; add it to `evaluation.measures`"),
        (
            merged(SYNTHETIC, {"evaluation": {"measures": ["gradient_diversity"]}}),
            "gradient_diversity",
            "neither high nor low values of gradient_diversity are better",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_measure_that_no_round_can_be_best_by_is_refused(document: Document, metric: str, why: str) -> None:
    with pytest.raises(SpecificationError) as refused:
        specification(document, evaluation={"best_model": metric})
    assert refused.value.pointer == "/evaluation/best_model"
    assert why in refused.value.detail
