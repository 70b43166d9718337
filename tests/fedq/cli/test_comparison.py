"""The table in which arms are compared."""

from typing import Any

import pytest
from rich.console import Console

from fedcore.platform.status import Status
from fedcore.statistics.significance import Conclusion
from fedq.cli.views import comparison
from fedq.results import presentation
from fedq.schemas import ArmResult, Difference, Estimate, MetricResult, Results, Target, TargetResult
from tests.fedq.results.test_best_arms import found

SCORE = Estimate(n=3, mean=0.9194, std=0.0289, low=0.8477, high=0.9912)
BETTER = Difference(
    n=3,
    mean=0.0343,
    std=0.0116,
    low=0.0055,
    high=0.063,
    p=0.0364,
    p_adjusted=0.0364,
    p_signed_rank=0.25,
    verdict=Conclusion.BETTER,
)


def test_accuracies_are_compared_in_percent() -> None:
    first, second = _lines(_results("test_accuracy", SCORE, BETTER))
    assert first == "fedavg 91.94 ± 2.89 91.94 ± 2.89 - - 23.1"
    assert second == "scaffold 91.94 ± 2.89 91.94 ± 2.89 +3.43 [+0.55, +6.30] better (p 0.036) 23.1"


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "0.0000"), (1.5e-9, "1.50e-09"), (-2.5, "-2.5000"), (1e7, "1.00e+07")]
)
def test_other_figures_are_written_so_that_they_can_be_read(value: float, told: str) -> None:
    single = Estimate(n=1, mean=value, std=None, low=None, high=None)
    first, _ = _lines(_results("suboptimality", single, BETTER))
    assert first == f"fedavg {told} {told} - - 23.1"


@pytest.mark.parametrize(
    ("p", "verdict", "told"),
    [
        (0.2, Conclusion.UNCLEAR, "unclear (p 0.2)"),
        (4e-7, Conclusion.WORSE, "worse (p 4e-07)"),
        (None, Conclusion.TOO_FEW_SEEDS, "too few seeds"),
        (None, Conclusion.INCOMPLETE, "incomplete"),
        (0.01, Conclusion.INCOMPLETE, "incomplete"),
    ],
)
def test_comparison_says_what_may_be_concluded(p: float | None, verdict: Conclusion, told: str) -> None:
    _, second = _lines(
        _results("test_accuracy", SCORE, BETTER.model_copy(update={"p_adjusted": p, "verdict": verdict}))
    )
    assert second.endswith(f"+6.30] {told} 23.1")


def test_another_arm_may_be_the_baseline() -> None:
    results = _results("test_accuracy", SCORE, BETTER).model_copy(update={"baseline": 1})
    console = Console(width=140)
    with console.capture() as capture:
        console.print(comparison(results))
    assert "final - scaffold" in capture.get()


@pytest.mark.parametrize(("diverged", "told"), [({}, "worse"), ({0: [3]}, "diverged in 1 of 5 seeds")])
def test_without_a_baseline_arms_are_beside_the_best_of_the_others(
    diverged: dict[int, list[int]], told: str
) -> None:
    best = found([0.8, 0.9], diverged=diverged, names=["fedavg", "scaffold"])
    results = _results("test_accuracy", SCORE, BETTER).model_copy(update={"best_arms": best})
    console = Console(width=160)
    with console.capture() as capture:
        console.print(comparison(results))
    assert "final - best other [95% CI]" in capture.get()
    assert told in capture.get()
    assert best.says in capture.get()
    with console.capture() as capture:
        console.print(comparison(results, baseline=True))
    assert "final - fedavg [95% CI]" in capture.get()
    assert best.says not in capture.get()
    assert best.says in str(results)


def test_arms_that_diverged_or_are_not_done_say_so() -> None:
    arm = {"warning": "1 of 3 runs diverged", "runs": {Status.SUCCEEDED: 1, Status.FAILED: 2}}
    first, _ = _lines(_results("test_accuracy", SCORE, BETTER, **arm))
    assert first.endswith("23.1 2 failed; 1 of 3 runs diverged")


def test_measures_of_private_runs_are_not_covered_by_epsilon() -> None:
    plain = _results("test_accuracy", SCORE, BETTER)
    private = {"parameters": {"privacy.kind": "client_level"}}
    first, second = plain.arms
    for update in (private, {"arms": [first, second.model_copy(update=private)]}):
        results = plain.model_copy(update=update)
        assert presentation.comparison_cells(results).title.endswith(
            "measured without noise, not covered by epsilon"
        )
    assert "epsilon" not in presentation.comparison_cells(plain).title


def test_a_metric_that_an_arm_lacks_is_left_open() -> None:
    first, _ = _lines(_results("test_accuracy", SCORE, BETTER), "train_loss")
    assert first == "fedavg - - - - 23.1"


def _lines(results: Results, metric: str | None = None) -> list[str]:
    """The lines of the arms, as words."""
    console = Console(width=140)
    with console.capture() as capture:
        console.print(comparison(results, metric))
    return [" ".join(line.split()) for line in capture.get().splitlines() if "23.1" in line]


def _results(metric: str, figure: Estimate, difference: Difference, **arm: Any) -> Results:
    arms = [
        _arm(0, "fedavg", metric, figure, None, **arm),
        _arm(1, "scaffold", metric, figure, difference, **arm),
    ]
    given = {
        "experiment_id": "exp_1",
        "name": "demo",
        "provenance": {},
        "position": "s.s9x6",
        "confidence": 0.95,
        "level": 0.05,
        "baseline": 0,
    }
    return Results(status=Status.SUCCEEDED, arms=arms, **given)


def _arm(
    index: int, name: str, metric: str, figure: Estimate, difference: Difference | None, **values: Any
) -> ArmResult:
    sent = Estimate(n=3, mean=23.088, std=0.0, low=23.088, high=23.088)
    totals = dict.fromkeys(("local_steps", "megabytes_up", "megabytes_down", "seconds", "simulated_seconds"))
    metrics = {
        metric: MetricResult(
            best=figure, final=figure, best_difference=difference, final_difference=difference
        )
    }
    given = {
        "runs": {Status.SUCCEEDED: 3},
        "diverged": 0,
        "stopped": 0,
        "rounds_done": 9,
        "settings": {},
        "seeds": [0, 1, 2],
        "curves": {},
    }
    return ArmResult(
        index=index, name=name, metrics=metrics, megabytes_sent=sent, **(totals | given | values)
    )


def test_cost_to_a_target_is_told_of_arms_that_got_there() -> None:
    took = Estimate(n=2, mean=12.5, std=0.5, low=8.0, high=17.0)
    nothing = dict.fromkeys(
        (
            "simulated_seconds",
            "seconds",
            "rounds_difference",
            "megabytes_difference",
            "simulated_seconds_difference",
        )
    )
    found = TargetResult(runs=3, reached=2, missed=1, rounds=took, megabytes=None, **nothing)
    results = _results("test_accuracy", SCORE, BETTER, to_target=found)
    told = comparison(results.model_copy(update={"target": Target(metric="test_accuracy", value=0.9)}))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(told)
    assert "reached test accuracy 0.9  rounds to it" in capture.get()
    assert " ".join(capture.get().split()).count("23.1 2 of 3 12.5 ± 0.5 -") == 2
