"""The figures of `GET .../results` against SciPy and NumPy, from rows written by hand."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from fedcore.statistics.best_set import ComparisonScale, find_best_arms
from fedq.results.confirmation import confirming_specification
from fedq.results.selection import BY_VALIDATION
from fedq.results.summaries import have_data_of, references_among
from fedq.schemas import Results
from tests.builders.claims import claim, commit, end_run, end_runs, fail, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document

ROUNDS, SEEDS = 3, 3


def _accuracy(held: Claim, round: int) -> float:
    """Different in every round of every run, highest in the second."""
    return float(np.random.default_rng([held.arm, held.seed]).uniform(0.1, 0.5, ROUNDS)[round - 1]) + (
        0.4 if round == 2 else 0.0
    )


def _history(held: Claim) -> list[RoundReport]:
    return [
        report(
            round,
            test_accuracy=_accuracy(held, round),
            train_loss=1 / (round + held.seed + held.arm),
            bytes_up=1_000_000 * (held.arm + 1),
            bytes_down=500_000 * (held.seed + 1),
            extra={"gradient_diversity": 2.0 + held.seed},
        )
        for round in range(1, ROUNDS + 1)
    ]


@pytest.fixture
def runs(http: httpx.Client, rows: Database) -> dict[tuple[int, int], Claim]:
    """Two arms with three seeds, finished, by arm and seed."""
    submit_over_http(http, TWO_ARMS)
    return {(held.arm, held.seed): held for held in end_runs(rows, _history, 2 * SEEDS)}


@pytest.fixture
def results(http: httpx.Client, runs: dict[tuple[int, int], Claim]) -> Document:
    (held, *_) = runs.values()
    return http.get(f"/v1/experiments/{held.experiment_id}/results").json()


def _agrees(estimate: Document, values: list[float]) -> None:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    expected = {
        "n": len(values),
        "mean": np.mean(values),
        "std": np.std(values, ddof=1),
        "low": low,
        "high": high,
    }
    assert estimate == pytest.approx(expected, rel=1e-9)


def test_best_and_final_are_means_over_seeds_with_students_interval(
    results: Document, runs: dict[tuple[int, int], Claim]
) -> None:
    for arm in (0, 1):
        accuracy = [[_accuracy(runs[arm, seed], round) for round in (1, 2, 3)] for seed in range(SEEDS)]
        figures = results["arms"][arm]["metrics"]["test_accuracy"]
        _agrees(figures["best"], [max(curve) for curve in accuracy])
        _agrees(figures["final"], [curve[-1] for curve in accuracy])


def test_the_best_arms_are_those_of_the_final_values_of_runs_that_have_ended(
    http: httpx.Client, rows: Database
) -> None:
    submit_over_http(http, TWO_ARMS | {"sweep": {"local.lr": [0.1, 0.05, 0.01]}})
    held = end_runs(rows, _history, 3 * SEEDS - 1)
    address = f"/v1/experiments/{held[0].experiment_id}/results"
    finals: list[dict[int, float]] = [{}, {}, {}]
    for one in held:
        finals[one.arm][one.seed] = _history(one)[-1].train_loss or 0.0
    expected = find_best_arms(finals, higher_is_better=False, scale=ComparisonScale.LOG)
    best = http.get(address, params={"metric": "train_loss"}).json()["best_arms"]
    assert (best["metric"], best["arms"], best["seeds"]) == ("train_loss", list(expected.arms), SEEDS)
    assert [one["verdict"] for one in best["beside"]] == [one.verdict for one in expected.beside]
    assert [one["low"] for one in best["beside"]] == pytest.approx([one.low for one in expected.beside])
    assert [one["seeds"] for one in best["beside"]] == [3, 3, 2]
    # Without a choice it is the most telling metric.
    assert http.get(address).json()["best_arms"]["metric"] == "test_accuracy"


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("baseline", ["1", "lr=0.05"])
def test_any_arm_may_be_the_baseline_by_index_or_name(
    http: httpx.Client, runs: dict[tuple[int, int], Claim], baseline: str
) -> None:
    place = f"/v1/experiments/{runs[0, 0].experiment_id}/results"
    forth, back = http.get(place).json(), http.get(place, params={"baseline": baseline}).json()
    assert (forth["best_arms"]["baseline"], back["best_arms"]["baseline"]) == (None, 1)
    assert [one["words"] for one in back["best_arms"]["beside"]][1] == "baseline"
    assert back["best_arms"]["arms"] == forth["best_arms"]["arms"]


@pytest.mark.usefixtures("database_url")
def test_differences_from_a_baseline_have_intervals_that_hold_together(
    http: httpx.Client, rows: Database
) -> None:
    """They are those of the best set's control, of each figure of a run."""
    submit_over_http(http, TWO_ARMS | {"sweep": {"local.lr": [0.1, 0.05, 0.01]}})
    held = end_runs(rows, _history, 3 * SEEDS)
    place = f"/v1/experiments/{held[0].experiment_id}/results"
    finals = [{one.seed: _accuracy(one, ROUNDS) for one in held if one.arm == arm} for arm in (0, 1, 2)]
    bests = [{one.seed: _accuracy(one, 2) for one in held if one.arm == arm} for arm in (0, 1, 2)]
    for by, figures in (("final", finals), ("best", bests)):
        asked = {"metric": "test_accuracy", "baseline": "2", "by": by}
        answer = http.get(place, params=asked).json()["best_arms"]
        expected = find_best_arms(figures, higher_is_better=True, scale=ComparisonScale.LOGIT, control=2)
        assert (answer["by"], answer["arms"]) == (by, list(expected.arms))
        for one, other in zip(answer["beside"], expected.control, strict=True):
            assert one["verdict"] == other.verdict
            for end in ("difference", "low", "high"):
                assert one[end] == pytest.approx(getattr(other, end))


@pytest.mark.parametrize(
    ("baseline", "alike"), [(0, [True, False, False]), (1, [False, True, True]), (2, [False, True, True])]
)
def test_arms_are_alike_in_their_data_if_they_have_those_of_the_baseline(
    baseline: int, alike: list[bool]
) -> None:
    arms: list[dict[str, Any]] = [
        {"problem.dataset.kind": "digits"},
        {"problem.dataset.kind": "mnist"},
        {"problem.dataset.kind": "mnist", "problem.dataset.augmentation": {"kind": "crop"}, "local.lr": 0.1},
    ]
    assert have_data_of(arms, baseline) == alike


@pytest.mark.parametrize("baseline", ["2", "momentum", "-1", "9" * 30])
def test_a_baseline_that_is_no_arm_is_refused_with_those_that_are(
    http: httpx.Client, runs: dict[tuple[int, int], Claim], baseline: str
) -> None:
    answer = http.get(f"/v1/experiments/{runs[0, 0].experiment_id}/results", params={"baseline": baseline})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {
            "pointer": "?baseline",
            "detail": f"must be an arm, by name or index: lr=0.1, lr=0.05; not {baseline!r}",
        }
    ]


def test_runs_that_are_missing_have_no_figure_and_arms_that_diverged_are_named(
    http: httpx.Client, rows: Database
) -> None:
    """Of five arms: all done; one run not done, one failed, one diverged, and one worse for all alike."""
    made = submit_over_http(http, TWO_ARMS | {"sweep": {"local.lr": [0.5, 0.4, 0.3, 0.2, 0.1]}})

    def history(held: Claim) -> list[RoundReport]:
        lost = held.arm == 3 and held.seed == 2
        return [report(1, train_loss=float("nan") if lost else 1.0 + held.arm, diverged=lost)]

    held = {(one.arm, one.seed): one for one in [claim(rows) for _ in range(15)]}
    for place, one in held.items():
        reports = history(one)
        ended = commit(rows, one, reports)
        if place == (2, 2):
            fail(rows, ended)
        elif place != (1, 2):
            end_run(rows, ended, diverged_round=1 if reports[-1].diverged else None)
    found = http.get(f"/v1/experiments/{made['id']}/results").json()["best_arms"]
    assert [one["seeds"] for one in found["beside"]] == [3, 2, 2, 3, 3]
    assert [one["verdict"] for one in found["beside"]] == ["best", "worse", "worse", "diverged", "worse"]


def test_a_line_of_reference_is_named_so_and_does_not_compete(http: httpx.Client, rows: Database) -> None:
    """Also where the arm has the algorithm that is not swept."""
    arms = [
        {"name": "worse", "algorithm": {"kind": "fedavg"}},
        {"name": "better", "algorithm": {"kind": "fedavg", "server_lr": 0.5}},
        {"name": "all data", "local.steps": 2},
    ]
    blocks = {"algorithm": {"kind": "pooled"}, "sweep": {"arms": arms}, "rounds": 1}
    document = {**TWO_ARMS, **blocks, "seeds": [0, 1, 2, 3]}
    place = f"/v1/experiments/{submit_over_http(http, document)['id']}"
    end_runs(rows, lambda held: [report(1, train_loss=3.0 - held.arm + 0.01 * held.seed * held.arm)], 12)
    found = http.get(f"{place}/results").json()
    assert [arm["reference"] for arm in found["arms"]] == [False, False, True]
    assert [one["words"] for one in found["best_arms"]["beside"]] == ["worse", "best", "reference"]
    beside = http.get(f"{place}/results", params={"baseline": "all data"}).json()["best_arms"]
    assert [one["words"] for one in beside["beside"]] == ["worse", "worse", "baseline"]
    assert beside["arms"] == [1]
    reached = http.get(f"{place}/results", params={"target": "train_loss:2.5"}).json()["best_arms"]
    assert reached["beside"][2]["verdict"] == "reference"
    compared = http.get("/v1/compare", params={"arm": place.rpartition("/")[2]}).json()
    assert compared["best_arms"] == found["best_arms"]
    told = http.get(f"{place}/report.md").text
    assert "**2." in told
    assert "**1." not in told
    confirmed = confirming_specification(document, Results.model_validate(found), 1, 5)
    assert [arm["name"] for arm in confirmed["sweep"]["arms"]] == ["better", "all data"]


def test_only_methods_have_lines_of_reference() -> None:
    assert references_among(["fedavg", "pooled", "local", None, "of/a_package"]) == {1}
    assert references_among(["pooled", "pooled"]) == set()


def test_nothing_is_concluded_from_the_values_of_runs_that_diverged(
    http: httpx.Client, rows: Database
) -> None:
    """All seeds of the second arm look better at first, and each of their values is finite."""
    made = submit_over_http(http, TWO_ARMS | {"rounds": 2})
    for held in [claim(rows) for _ in range(6)]:
        last = 1.0 if held.arm == 0 else 1e9
        lost = held.arm == 1
        first = report(1, train_loss=0.9 - held.arm / 2 + held.seed / 100)
        ended = commit(rows, held, [first, report(2, train_loss=last + held.seed, diverged=lost)])
        end_run(rows, ended, diverged_round=2 if lost else None)
    place = f"/v1/experiments/{made['id']}/results"
    for by in ("final", "best", "area"):
        found = http.get(place, params={"by": by, "metric": "train_loss"}).json()["best_arms"]
        assert found["beside"][1]["words"] == "diverged in 3 of 3 seeds"
    second = http.get(place, params={"target": "train_loss:0.95"}).json()["arms"][1]
    assert (second["diverged"], second["to_target"]["reached"]) == (3, 3)


def test_the_best_loss_is_the_lowest(results: Document) -> None:
    _agrees(results["arms"][0]["metrics"]["train_loss"]["best"], [1 / 3, 1 / 4, 1 / 5])


def test_a_measure_without_better_and_worse_has_no_best(results: Document) -> None:
    figures = results["arms"][0]["metrics"]["gradient_diversity"]
    assert figures["best"] is None
    _agrees(figures["final"], [2.0, 3.0, 4.0])


def test_the_curve_is_the_mean_and_deviation_of_each_round_over_megabytes_sent(
    results: Document, runs: dict[tuple[int, int], Claim]
) -> None:
    curve = results["arms"][1]["curves"]["test_accuracy"]
    values = np.array([[_accuracy(runs[1, seed], round) for round in (1, 2, 3)] for seed in range(SEEDS)])
    assert curve["rounds"] == [1, 2, 3]
    assert curve["n"] == [3, 3, 3]
    assert curve["mean"] == pytest.approx(values.mean(0))
    assert curve["std"] == pytest.approx(values.std(0, ddof=1))
    # Each round 2 MB up, and 0.5, 1.0 and 1.5 MB down.
    assert curve["megabytes"] == pytest.approx([3.0, 6.0, 9.0])


def test_traffic_work_and_time_are_totals_of_a_run(results: Document) -> None:
    arm = results["arms"][1]
    _agrees(arm["megabytes_down"], [1.5, 3.0, 4.5])
    _agrees(arm["megabytes_sent"], [7.5, 9.0, 10.5])
    assert {
        name: (arm[name]["mean"], arm[name]["std"]) for name in ("megabytes_up", "local_steps", "seconds")
    } == {
        "megabytes_up": (6.0, 0.0),
        "local_steps": (18.0, 0.0),
        "seconds": (1.5, 0.0),
    }


def test_summary_of_one_seed_has_a_mean_and_no_interval(http: httpx.Client, rows: Database) -> None:
    figures = _results(http, rows, TINY, lambda _: [report(1, train_loss=2.0)])["arms"][0]["metrics"][
        "train_loss"
    ]
    assert figures["final"] == {"n": 1, "mean": 2.0, "std": None, "low": None, "high": None}


def test_a_run_that_diverged_has_no_final_figure_but_its_best(http: httpx.Client, rows: Database) -> None:
    history = [report(1, train_loss=2.0), report(2, train_loss=float("nan"), diverged=True)]
    arm = _results(http, rows, TINY, lambda _: history)["arms"][0]
    assert arm["diverged"] == 1
    assert arm["metrics"]["train_loss"]["best"]["mean"] == 2.0
    assert arm["metrics"]["train_loss"]["final"] is None


def test_results_of_an_unfinished_experiment_are_those_of_its_rows_so_far(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, TWO_ARMS)
    commit(rows, claim(rows), [report(1, train_loss=2.0), report(2, train_loss=1.0)])
    results = http.get(f"/v1/experiments/{made['id']}/results").json()
    assert results["status"] == "running"
    assert (results["arms"][0]["seeds"], results["arms"][0]["rounds_done"], results["arms"][0]["runs"]) == (
        [0],
        2,
        {"running": 1, "queued": 2},
    )
    second = results["arms"][1]
    assert (second["seeds"], second["rounds_done"], second["runs"]) == ([], 0, {"queued": 3})
    assert (second["metrics"], second["curves"], second["megabytes_sent"], second["seconds"]) == (
        {},
        {},
        None,
        None,
    )


def test_rounds_that_were_not_evaluated_leave_no_point(http: httpx.Client, rows: Database) -> None:
    history = [report(1), report(2, train_loss=2.0), report(3, train_loss=1.0)]
    curve = _results(http, rows, TINY, lambda _: history)["arms"][0]["curves"]["train_loss"]
    assert curve["rounds"] == [2, 3]
    assert curve["megabytes"] == pytest.approx([0.001, 0.0015])


def test_a_curve_is_thinned_and_keeps_its_ends_and_its_spikes(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 300})
    end_runs(
        rows,
        lambda _: [report(round, train_loss=9.0 if round == 123 else 1.0 / round) for round in range(1, 301)],
        1,
    )
    results = http.get(f"/v1/experiments/{made['id']}/results", params={"points": 8}).json()
    curve = results["arms"][0]["curves"]["train_loss"]
    assert curve["rounds"] == [1, 100, 123, 200, 201, 300]
    assert curve["mean"] == [9.0 if round == 123 else 1.0 / round for round in curve["rounds"]]


def test_results_may_be_of_some_metrics_only(http: httpx.Client, results: Document) -> None:
    chosen = http.get(
        f"/v1/experiments/{results['experiment_id']}/results",
        params={"metric": ["gradient_diversity", "train_loss"]},
    ).json()
    for one, all_ in zip(chosen["arms"], results["arms"], strict=True):
        for part in ("metrics", "curves"):
            assert one.pop(part) == {
                name: all_[part].pop(name) for name in ("gradient_diversity", "train_loss")
            }
            all_.pop(part)
        assert one == all_


def _results(
    http: httpx.Client, rows: Database, document: Document, history: Callable[[Claim], list[RoundReport]]
) -> Document:
    made = submit_over_http(http, document)
    end_runs(rows, history, 1)
    return http.get(f"/v1/experiments/{made['id']}/results").json()


@pytest.mark.parametrize("params", [{}, {"metric": "test_accuracy"}], ids=["all", "one metric"])
def test_the_best_of_test_samples_is_that_of_the_round_that_validation_selects(
    http: httpx.Client, rows: Database, params: Document
) -> None:
    """In results and, from figures that are stored with the runs, in the table of arms."""
    made = submit_over_http(http, TINY)
    tested, validated = [0.9, 0.5, 0.6], [0.1, 0.7, 0.3]
    history = [
        report(round, test_accuracy=tested[round - 1], extra={"validation_accuracy": validated[round - 1]})
        for round in (1, 2, 3)
    ]
    end_runs(rows, lambda _: history, 1)
    results = http.get(f"/v1/experiments/{made['id']}/results", params=params).json()
    (arm,) = results["arms"]
    assert [arm["metrics"]["test_accuracy"][which]["mean"] for which in ("best", "final")] == [0.5, 0.6]
    assert results["selection"] == BY_VALIDATION
    (row,) = http.get("/v1/arms", params={"fields": "test_accuracy.best"}).json()["items"]
    assert row["metrics"]["test_accuracy"]["best"]["mean"] == 0.5
    assert "by validation" in http.get(f"/v1/experiments/{made['id']}/report.md").text


def test_the_simulated_clock_is_read_beside_each_curve(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, TINY | {"seeds": [0, 1]})
    end_runs(
        rows,
        lambda held: [
            report(round, test_accuracy=0.5, extra={"simulated_seconds": 10.0 * round + held.seed})
            for round in (1, 2, 3)
        ],
        2,
    )
    arm = http.get(f"/v1/experiments/{made['id']}/results").json()["arms"][0]
    assert arm["curves"]["test_accuracy"]["simulated_seconds"] == pytest.approx([10.5, 20.5, 30.5])
    assert (arm["simulated_seconds"]["n"], arm["simulated_seconds"]["mean"]) == (2, 30.5)


def test_without_a_clock_no_time_is_simulated(results: Document) -> None:
    for arm in results["arms"]:
        assert arm["simulated_seconds"] is None
        assert arm["curves"]["test_accuracy"]["simulated_seconds"] == [None] * ROUNDS


def test_an_undefined_measure_is_absent(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    end_runs(
        rows,
        lambda _: [
            report(round, extra={"gradient_diversity": 2.0 if round < 3 else float("inf")})
            for round in (1, 2, 3)
        ],
        1,
    )
    arm = http.get(f"/v1/experiments/{made['id']}/results").json()["arms"][0]
    assert arm["curves"]["gradient_diversity"]["rounds"] == [1, 2]
    assert arm["metrics"]["gradient_diversity"]["final"]["mean"] == 2.0


def test_the_area_is_the_mean_height_of_the_curve(http: httpx.Client, rows: Database) -> None:
    history = [
        report(1),
        report(2, train_loss=4.0),
        report(3, train_loss=2.0),
        report(4),
        report(5, train_loss=1.0),
    ]
    area = _results(http, rows, {**TINY, "rounds": 5}, lambda _: history)["arms"][0]["metrics"]["train_loss"][
        "area"
    ]
    assert area["mean"] == pytest.approx(trapezoid([4.0, 2.0, 1.0], [2, 3, 5]) / 3)


def test_the_area_of_one_value_is_that_value_and_of_a_run_that_diverged_there_is_none(
    http: httpx.Client, rows: Database
) -> None:
    figures = _results(http, rows, TINY, lambda _: [report(1, train_loss=2.0, test_accuracy=1e308)])["arms"][
        0
    ]["metrics"]
    assert (figures["train_loss"]["area"]["mean"], figures["test_accuracy"]["area"]["mean"]) == (2.0, 1e308)
    history = [report(1, train_loss=2.0), report(2, train_loss=float("nan"), diverged=True)]
    assert _results(http, rows, TINY, lambda _: history)["arms"][0]["metrics"]["train_loss"]["area"] is None


def test_areas_are_estimated_as_other_figures_are(
    results: Document, runs: dict[tuple[int, int], Claim]
) -> None:
    areas = [
        [
            float(trapezoid([_accuracy(runs[arm, seed], round) for round in (1, 2, 3)])) / 2
            for seed in range(SEEDS)
        ]
        for arm in (0, 1)
    ]
    figures = results["arms"][1]["metrics"]["test_accuracy"]
    _agrees(figures["area"], areas[1])
