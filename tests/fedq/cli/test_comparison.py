"""The table in which arms are compared."""

from typing import Any

import pytest
from rich.console import Console

from fedcore.platform.status import Status
from fedq.cli.views import comparison
from fedq.results import presentation
from fedq.schemas import ArmResult, BestArms, Estimate, MetricResult, Results, Target, TargetResult
from tests.fedq.results.test_best_arms import found

SCORE = Estimate(n=3, mean=0.9194, std=0.0289, low=0.8477, high=0.9912)


def test_accuracies_are_compared_in_percent() -> None:
    """Beside the best of the others, of two arms that is the other one."""
    best = found([0.8, 0.9], names=["fedavg", "scaffold"])
    first, second = _lines(_results("test_accuracy", SCORE, best_arms=best))
    one, other = best.beside
    apart, low = (f"{100 * (value or 0.0):+.2f}" for value in (one.difference, one.low))
    assert first == f"fedavg 91.94 ± 2.89 91.94 ± 2.89 {apart} [{low}, 0] worse 23.1"
    ahead, high = (f"{100 * (value or 0.0):+.2f}" for value in (other.difference, other.high))
    assert second == f"scaffold 91.94 ± 2.89 91.94 ± 2.89 {ahead} [0, {high}] best 23.1"


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "0.0000"), (1.5e-9, "1.50e-09"), (-2.5, "-2.5000"), (1e7, "1.00e+07")]
)
def test_other_figures_are_written_so_that_they_can_be_read(value: float, told: str) -> None:
    single = Estimate(n=1, mean=value, std=None, low=None, high=None)
    first, _ = _lines(_results("suboptimality", single))
    assert first == f"fedavg {told} {told} 23.1"


@pytest.mark.parametrize(("diverged", "told"), [({}, "worse"), ({0: [3]}, "diverged in 1 of 5 seeds")])
def test_arms_are_beside_the_best_of_the_others_and_the_conclusion_in_words(
    diverged: dict[int, list[int]], told: str
) -> None:
    best = found([0.8, 0.9], diverged=diverged, names=["fedavg", "scaffold"])
    text = _printed(_results("test_accuracy", SCORE, best_arms=best))
    assert "final - best other [95% CI]" in text
    assert told in text
    assert best.says in text
    assert best.says in str(_results("test_accuracy", SCORE, best_arms=best))


def test_arms_are_beside_a_baseline_that_is_named() -> None:
    """Here too the table, its verdicts and the words say the same."""
    best = found([0.8, 0.9], names=["fedavg", "scaffold"], baseline=0)
    text = _printed(_results("test_accuracy", SCORE, best_arms=best))
    assert "final - fedavg [95% CI]" in text
    assert "Beside fedavg, in final test accuracy: scaffold is better." in text
    first, second = _lines(_results("test_accuracy", SCORE, best_arms=best))
    assert first == "fedavg 91.94 ± 2.89 91.94 ± 2.89 - baseline 23.1"
    assert second.endswith("better 23.1")


def test_arms_that_diverged_or_are_not_done_say_so() -> None:
    arm: dict[str, Any] = {"warning": "1 of 3 runs diverged", "runs": {Status.SUCCEEDED: 1, Status.FAILED: 2}}
    first, _ = _lines(_results("test_accuracy", SCORE, **arm))
    assert first.endswith("23.1 2 failed; 1 of 3 runs diverged")


def test_measures_of_private_runs_are_not_covered_by_epsilon() -> None:
    plain = _results("test_accuracy", SCORE)
    private = {"parameters": {"privacy.kind": "client_level"}}
    first, second = plain.arms
    for update in (private, {"arms": [first, second.model_copy(update=private)]}):
        results = plain.model_copy(update=update)
        assert presentation.comparison_cells(results).title.endswith(
            "measured without noise, not covered by epsilon"
        )
    assert "epsilon" not in presentation.comparison_cells(plain).title


def test_a_metric_that_an_arm_lacks_is_left_open() -> None:
    first, _ = _lines(_results("test_accuracy", SCORE), "train_loss")
    assert first == "fedavg - - 23.1"


def _printed(results: Results, metric: str | None = None) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(comparison(results, metric))
    return capture.get()


def _lines(results: Results, metric: str | None = None) -> list[str]:
    """The lines of the arms, as words."""
    return [" ".join(line.split()) for line in _printed(results, metric).splitlines() if "23.1" in line]


def _results(
    metric: str,
    figure: Estimate,
    best_arms: BestArms | None = None,
    target: Target | None = None,
    **arm: Any,
) -> Results:
    given = {
        "experiment_id": "exp_1",
        "name": "demo",
        "provenance": {},
        "position": "s.s9x6",
        "confidence": 0.95,
        "best_arms": best_arms,
        "target": target,
    }
    arms = [_arm(place, name, metric, figure, **arm) for place, name in enumerate(("fedavg", "scaffold"))]
    return Results(status=Status.SUCCEEDED, arms=arms, **given)


def _arm(index: int, name: str, metric: str, figure: Estimate, **values: Any) -> ArmResult:
    sent = Estimate(n=3, mean=23.088, std=0.0, low=23.088, high=23.088)
    totals = dict.fromkeys(("local_steps", "megabytes_up", "megabytes_down", "seconds", "simulated_seconds"))
    given = {
        "runs": {Status.SUCCEEDED: 3},
        "diverged": 0,
        "stopped": 0,
        "rounds_done": 9,
        "settings": {},
        "seeds": [0, 1, 2],
        "curves": {},
        "metrics": {metric: MetricResult(best=figure, final=figure)},
        "megabytes_sent": sent,
    }
    return ArmResult(index=index, name=name, **(totals | given | values))


def test_cost_to_a_target_is_a_bound_where_runs_have_not_reached_it() -> None:
    took = Estimate(n=3, mean=12.5, std=None, low=None, high=None)
    nothing = dict.fromkeys(("simulated_seconds", "seconds"))
    cost = TargetResult(runs=3, reached=2, missed=1, rounds=took, megabytes=None, **nothing)
    target = Target(metric="test_accuracy", value=0.9)
    text = _printed(_results("test_accuracy", SCORE, target=target, to_target=cost))
    assert "reached test accuracy 0.9  rounds to it" in text
    assert " ".join(text.split()).count("23.1 2 of 3 at least 12.5 -") == 2
