"""Runs: what is reported of them, how they end, and what their arms share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import ExperimentSpec, RoundReport, Simulation, run
from fedcore.core import ClientUpdate
from fedcore.engine.assignment import Job
from fedcore.engine.client_by_client import reference
from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError
from tests.documents import DIGITS, QUADRATIC, SYNTHETIC, Document, specification

MNIST = {**DIGITS, "problem": {**DIGITS["problem"], "dataset": {"kind": "mnist"}}}
BLOW_UP: Document = {**QUADRATIC, "local": {"lr": 1e6, "steps": 5}, "rounds": 50}


def played(spec: ExperimentSpec, seed: int = 0) -> Simulation:
    simulation = Simulation(spec, seed)
    while not simulation.finished:
        simulation.advance()
    return simulation


def without_time(report: RoundReport) -> RoundReport:
    return replace(report, seconds=0.0)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_every_arm_and_seed_has_every_round_in_order(engine: str) -> None:
    sweep = {"local.lr": [0.1, 0.2], "algorithm": [{"kind": "fedavg"}, {"kind": "scaffold"}]}
    spec = specification(QUADRATIC, seeds=[4, 2], sweep=sweep, execution={"engine": engine})
    reported = [(report.arm, report.seed, report.round) for report in run(spec)]
    if engine == "vectorised":
        # All runs are one batch.
        reported.sort(key=lambda report: (report[0], -report[1]))
    assert reported == [(arm, seed, round) for arm in range(4) for seed in (4, 2) for round in range(1, 9)]


def test_an_arm_is_the_experiment_its_settings_describe() -> None:
    swept = specification(QUADRATIC, sweep={"local.lr": [0.1, 0.2]})
    alone = specification(QUADRATIC, local={"lr": 0.2})
    in_the_sweep = [without_time(report) for report in run(swept) if report.arm == 1]
    assert in_the_sweep == [replace(without_time(report), arm=1) for report in run(alone)]


def test_what_is_not_evaluated_is_absent_but_the_last_round_always_is() -> None:
    spec = specification(
        DIGITS, rounds=5, evaluation={"every": 2, "measures": ["test_accuracy", "gradient_diversity"]}
    )
    reports = list(run(spec))
    evaluated = [report.round for report in reports if report.test_accuracy is not None]
    assert (
        evaluated == [2, 4, 5] == [report.round for report in reports if "gradient_diversity" in report.extra]
    )
    assert {report.train_loss for report in reports} == {report.test_loss for report in reports} == {None}
    assert all(
        report.local_steps and report.bytes_up and report.bytes_down and report.seconds > 0
        for report in reports
    )


def test_an_exact_problem_reports_its_gap_and_no_accuracy() -> None:
    report = next(run(specification(QUADRATIC)))
    assert report.test_accuracy is report.test_loss is None
    assert report.extra.keys() == {"objective", "suboptimality", "distance", "x"}
    assert report.train_loss == report.extra["objective"]


def test_digits_are_learned() -> None:
    *_, last = run(specification(DIGITS, local={"lr": 0.5}, rounds=60))
    assert last.test_accuracy is not None
    assert last.test_accuracy > 0.9


def test_the_model_is_the_one_that_was_measured() -> None:
    simulation = played(specification(DIGITS))
    model = simulation.model()
    assert {name: tuple(parameter.shape) for name, parameter in model.items()} == {
        "1.weight": (10, 64),
        "1.bias": (10,),
    }
    report = list(run(specification(DIGITS)))[-1]
    test = simulation._setting.problem.data.dataset.test  # type: ignore[attr-defined]
    scores = torch.nn.functional.linear(test.features.flatten(1), model["1.weight"], model["1.bias"])
    assert report.test_accuracy == pytest.approx(float((scores.argmax(1) == test.labels).float().mean()))


def test_a_run_that_diverges_says_so_and_ends() -> None:
    reports = list(run(specification(BLOW_UP)))
    assert [report.diverged for report in reports] == [False] * (len(reports) - 1) + [True]
    assert len(reports) < 50


def test_other_arms_go_on_after_one_has_diverged() -> None:
    reports = list(run(specification(BLOW_UP, sweep={"local.lr": [1e6, 0.01]}, rounds=20)))
    assert [report.round for report in reports if report.arm == 1] == [*range(1, 21)]


def test_a_diverged_run_stays_so_when_it_is_restored() -> None:
    diverged = played(specification(BLOW_UP))
    restored = Simulation(specification(BLOW_UP), seed=0)
    restored.restore(diverged.checkpoint())
    assert restored.diverged
    assert restored.finished
    assert restored.round == diverged.round < 50


def test_divergence_shows_between_evaluations_too() -> None:
    spec = specification(BLOW_UP, evaluation={"every": 50})
    assert next(report.round for report in run(spec) if report.diverged) < 50


def test_a_run_goes_on_from_a_file(tmp_path: Path) -> None:
    spec = specification(SYNTHETIC)
    simulation = Simulation(spec, seed=0)
    undisturbed = [without_time(simulation.advance()) for _ in range(2)]
    (tmp_path / "checkpoint").write_bytes(simulation.checkpoint())
    undisturbed += [without_time(simulation.advance()) for _ in range(2)]
    assert [without_time(report) for report in run(spec, resume=tmp_path / "checkpoint")] == undisturbed[2:]


def test_a_finished_run_has_nothing_left_to_report(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(played(specification(QUADRATIC)).checkpoint())
    assert list(run(specification(QUADRATIC), resume=tmp_path / "checkpoint")) == []


@pytest.mark.parametrize(
    "several", [{"seeds": [0, 1]}, {"sweep": {"local.lr": [0.1, 0.2]}}], ids=["seeds", "arms"]
)
def test_a_checkpoint_of_one_run_cannot_resume_several(several: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="a checkpoint resumes a single run"):
        next(run(specification(QUADRATIC, **several), resume=tmp_path / "never read"))


def test_a_checkpoint_of_another_seed_is_refused() -> None:
    with pytest.raises(CheckpointError, match="another specification or seed"):
        Simulation(specification(QUADRATIC), seed=1).restore(
            Simulation(specification(QUADRATIC), seed=0).checkpoint()
        )


def test_a_missing_data_set_is_reported_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"python -m fedcore\.data\.download mnist"):
        Simulation(specification(MNIST), seed=0, data_dir=tmp_path)


class Recorder:
    """The reference engine, noting what each client is given to do."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    def __call__(self, jobs: Sequence[Job]) -> list[ClientUpdate]:
        for assignment in (job.work for job in jobs):
            batches = [batch.tolist() for batch in assignment.batches]
            self.seen.append([assignment.clients.tolist(), assignment.steps.tolist(), batches])
        return reference(jobs)


def given(spec: ExperimentSpec, seed: int = 0) -> list[list[Any]]:
    """Cohorts, steps and batches of every round."""
    simulation, recorder = Simulation(spec, seed), Recorder()
    simulation._setting = replace(simulation._setting, engine=recorder)
    while not simulation.finished:
        simulation.advance()
    return recorder.seen


ARMS: dict[str, Document] = {
    "another algorithm": {"algorithm": {"kind": "scaffold"}},
    "another server": {"server": {"kind": "adam", "lr": 0.1}},
    "another step size": {"local": {"lr": 0.5, "optimizer": {"momentum": 0.9}}},
    "compression": {
        "compression": {"uplink": {"kind": "rand_k", "ratio": 0.1}, "downlink": {"kind": "qsgd"}}
    },
    "other measures": {"evaluation": {"every": 4, "measures": ["gradient_variance"]}},
    "more rounds to come": {"rounds": 6},
    "another model": {"problem": {"model": {"kind": "mlp", "hidden": [3]}}},
}


@pytest.mark.parametrize("change", ARMS.values(), ids=ARMS)
def test_arms_that_share_a_seed_see_the_same_cohorts_stragglers_and_batches(change: Document) -> None:
    assert given(specification(SYNTHETIC, **change))[:4] == given(specification(SYNTHETIC))


def test_dropping_stragglers_leaves_the_others_the_work_they_had() -> None:
    """FedProx, Section 5.2: FedAvg and FedProx face the same stragglers.

    Only what is done with them differs.
    """
    kept = given(specification(SYNTHETIC))
    dropped = given(specification(SYNTHETIC, systems={"stragglers": {"fraction": 0.5, "policy": "drop"}}))
    for (kept_clients, *kept_work), (clients, *work) in zip(kept, dropped, strict=True):
        rows = [kept_clients.index(client) for client in clients]
        assert len(rows) == 2
        assert work == [[part[row] for row in rows] for part in kept_work]


def test_rounds_and_seeds_differ() -> None:
    first, second = (
        given(specification(SYNTHETIC, problem={"dataset": {"seed": 0}}), seed) for seed in (0, 1)
    )
    assert len({str(round) for round in first + second}) == 8


def test_a_round_does_not_depend_on_how_the_ones_before_it_were_carried_out() -> None:
    """Randomness is keyed, not consumed: a run restored at round 2 sees what the undisturbed one
    saw.
    """
    simulation = Simulation(specification(SYNTHETIC), seed=0)
    simulation.advance()
    simulation.advance()
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    restored, recorder = Simulation(specification(SYNTHETIC), seed=0), Recorder()
    restored.restore(simulation.checkpoint())
    restored._setting = replace(restored._setting, engine=recorder)
    restored.advance()
    assert recorder.seen == given(specification(SYNTHETIC))[2:3]
