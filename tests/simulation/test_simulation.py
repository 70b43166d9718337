"""Runs: what is reported of them, how they end, and what their arms share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore import ExperimentSpec, RoundReport, Simulation, run
from fedcore.core import ClientContext, ClientUpdate, Rule
from fedcore.engine.assignment import Job
from fedcore.engine.client_by_client import reference
from fedcore.engine.engines import ENGINES
from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError
from fedcore.problems.batches import data_kind
from fedcore.simulation.local_run import TrialBatches
from fedcore.simulation.simulation import advance_batch
from fedcore.spec.engines import facts_about
from fedcore.spec.experiment import Arm
from tests.builders.specifications import (
    ALGORITHMS,
    COMPILED,
    DIGITS,
    DIGITS_CNN,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    specification,
    suited,
)
from tests.engine.test_engines import LEAST_SQUARES
from tests.support.accelerated import NEEDS_COMPILED

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


def test_rounds_not_evaluated_have_no_values_but_the_last_round_always_has() -> None:
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
    test = simulation.context.problem.data.dataset.test  # type: ignore[attr-defined]
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
    assert restored.facts.diverged
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
    with pytest.raises(DataUnavailableError, match=r"python -m fedq\.download mnist"):
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
    simulation.context = replace(simulation.context, engine=recorder)
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
    restored.context = replace(restored.context, engine=recorder)
    restored.advance()
    assert recorder.seen == given(specification(SYNTHETIC))[2:3]


# Batches: runs that advance together, and come out as each by itself.

MLP: Document = {"problem": {"model": {"kind": "mlp", "hidden": [3], "l2": 0.1}}}
NUMBERS: list[Document] = [
    {},
    {"local": {"lr": 0.02}, "seeds": [1]},
    {"local": {"optimizer": {"momentum": 0.9, "prox_mu": 0.1, "weight_decay": 0.01}}},
    {
        "local": {"lr_schedule": {"kind": "exponential", "gamma": 0.9}},
        "algorithm": {"kind": "fedprox", "mu": 0.3},
    },
    {"algorithm": {"kind": "scaffold"}, "compression": {"uplink": {"kind": "qsgd"}}},
    {"algorithm": {"kind": "fedlin"}, "rounds": 1},
]
"""Arms that differ in whatever a step depends on."""
SHORT = merged(
    SYNTHETIC,
    {
        "local": {"epochs": None, "steps": 4, "batch_size": 8},
        "participation": {"clients_per_round": 3},
        "rounds": 2,
    },
)
PROBLEMS: dict[str, Document] = {
    "softmax": SHORT,
    "fully connected": merged(SHORT, MLP),
    "convolutional": {**DIGITS_CNN, "local": {"lr": 0.05, "steps": 3, "batch_size": 9}, "systems": {}},
    "quadratic": {**QUADRATIC, "rounds": 3},
    "least squares": LEAST_SQUARES,
    "transformed": merged(
        SHORT, {"participation": {"kind": "without_replacement", "clients_per_round": 3, "transformed": True}}
    ),
}


def flat(simulation: Simulation) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


def finish(simulations: Sequence[Simulation]) -> None:
    """Play all to their ends, together."""
    while left := [simulation for simulation in simulations if not simulation.finished]:
        advance_batch(left)


def assert_as_each_by_itself(members: Sequence[Simulation]) -> None:
    """To the bit where the engine promises it, else to rounding."""
    finish(members)
    for member in members:
        alone = Simulation(member.spec, member.seed)
        finish([alone])
        assert alone.round == member.round
        close = 1e-10 if member.facts.choice.engine == "vectorised" else 0.0
        torch.testing.assert_close(flat(member), flat(alone), rtol=0, atol=close, equal_nan=True)


COMPILED_PROBLEMS = ("softmax", "fully connected", "transformed")
ENGINES_FOR = [
    (name, engine)
    for name in PROBLEMS
    for engine in ENGINES
    if engine != "compiled" or name in COMPILED_PROBLEMS
]
QUICK = {
    ("softmax", "compiled"),
    ("softmax", "vectorised"),
    ("fully connected", "vectorised"),
    ("fully connected", "reference"),
    ("convolutional", "parallel"),
    ("convolutional", "vectorised"),
    ("quadratic", "vectorised"),
    ("least squares", "vectorised"),
    ("transformed", "compiled"),
}
"""Each problem, and each engine: those that train several runs at once with several problems."""


@pytest.mark.parametrize(
    ("problem", "engine"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.nightly) for case in ENGINES_FOR],
)
def test_runs_come_out_of_a_batch_as_they_do_alone(problem: str, engine: str) -> None:
    arms = [
        specification(merged(PROBLEMS[problem], numbers), execution={"engine": engine}) for numbers in NUMBERS
    ]
    assert_as_each_by_itself([Simulation(arm, seed) for seed, arm in enumerate(arms)])


@pytest.mark.parametrize("engine", ["vectorised", pytest.param("compiled", marks=NEEDS_COMPILED)])
def test_algorithms_go_together_in_a_batch(engine: str) -> None:
    kinds = COMPILED if engine == "compiled" else ALGORITHMS
    specs = [specification(merged(SHORT, suited(kind)), execution={"engine": engine}) for kind in kinds]
    assert_as_each_by_itself([Simulation(spec, seed=0) for spec in specs])


def test_members_may_be_at_different_rounds_and_leave_when_they_are_done_or_diverge() -> None:
    stacked: Document = merged(merged(SHORT, MLP), {"execution": {"engine": "vectorised"}})
    ahead, other = (Simulation(specification(stacked), seed) for seed in (0, 1))
    ahead.advance()
    wild = Simulation(
        specification(stacked, local={"lr": 1e6}, problem={"model": {"l2": 0.1}}, rounds=50), seed=2
    )
    assert [report.round for report in advance_batch([ahead, other, wild])] == [2, 1, 1]
    assert_as_each_by_itself([ahead, other, wild])
    assert (ahead.facts.diverged, other.facts.diverged, wild.facts.diverged) == (False, False, True)
    assert torch.isfinite(flat(other)).all()


def test_a_round_that_nobody_reaches_holds_nobody_up() -> None:
    unreachable: Document = {"systems": {"availability": {"kind": "trace", "rounds": [[]]}}}
    nobody, somebody = (
        Simulation(specification(SYNTHETIC, **changes), seed=0) for changes in (unreachable, {})
    )
    empty, full = advance_batch([nobody, somebody])
    assert empty.local_steps == 0 < full.local_steps
    assert (nobody.facts.batched_runs, somebody.facts.batched_runs) == (1, 1)


@dataclass(frozen=True)
class Cubes(Rule):
    """A rule that is no affine recursion: the step is the cube of the gradient."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad * grad * grad


def test_a_rule_of_any_form_goes_beside_others() -> None:
    def cubing(engine: str) -> Simulation:
        simulation = Simulation(specification(SHORT, execution={"engine": engine}), seed=0)
        algorithm = replace(simulation.context.algorithm, rule=Cubes())
        simulation.context = replace(simulation.context, algorithm=algorithm)
        return simulation

    members = [
        cubing("vectorised"),
        cubing("reference"),
        Simulation(specification(SHORT, execution={"engine": "vectorised"}), seed=0),
    ]
    finish(members)
    torch.testing.assert_close(flat(members[0]), flat(members[1]), rtol=0, atol=1e-12)


def test_large_data_sets_are_joined_only_where_they_are_the_same() -> None:
    def problems(seeds: Sequence[int]) -> list[Any]:
        specs = [specification(SYNTHETIC, problem={"dataset": {"seed": seed}}) for seed in seeds]
        return [Simulation(spec, seed).context.problem for seed, spec in enumerate(specs)]

    same, others = problems((0, 0)), problems((0, 1))
    assert len({problem.kind for problem in others}) == 1
    assert len({data_kind(problem.data, most_bytes=1) for problem in same}) == 1
    assert len({data_kind(problem.data, most_bytes=1) for problem in others}) == 2


def test_an_experiment_is_the_same_in_batches_of_any_size(tmp_path: Path) -> None:
    spec = specification(
        merged(SHORT, MLP),
        execution={"engine": "vectorised"},
        seeds=[0, 1, 2],
        sweep={"local.lr": [0.01, 0.02]},
    )
    apart = _outcome(spec, 1, tmp_path)
    assert _outcome(spec, 4, tmp_path) == pytest.approx(apart, rel=1e-12)
    assert len(apart) == 12


def _outcome(spec: ExperimentSpec, size: int, folder: Path) -> dict[tuple[int, int, int], float | None]:
    facts = facts_about(spec)

    def create(arm: Arm, seed: int) -> Simulation:
        return Simulation(arm.spec, seed, arm=arm.index, arms=facts)

    batches = TrialBatches(folder, create, size)
    runs = [(arm, seed) for arm in spec.arms() for seed in spec.seeds]
    played = batches.play_up_to(runs, spec.rounds)
    return {(report.arm, report.seed, report.round): report.test_loss for report in played}


def test_the_size_of_the_batch_is_remembered() -> None:
    members = [Simulation(specification(SYNTHETIC), seed) for seed in (0, 1)]
    advance_batch(members)
    restored = Simulation(specification(SYNTHETIC), seed=0)
    assert restored.facts.batched_runs == 1
    restored.restore(members[0].checkpoint())
    assert (members[0].facts.batched_runs, restored.facts.batched_runs) == (2, 2)
