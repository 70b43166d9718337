"""Gangs: runs that advance together, and come out as each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.core import ClientContext, ClientRule
from fedcore.engine.engines import ENGINES
from fedcore.problems.batches import data_kind
from fedcore.simulation.local_run import TrialBatches
from fedcore.simulation.simulation import advance_batch
from fedcore.spec.engines import facts_about
from fedcore.spec.experiment import Arm
from tests.documents import (
    ALGORITHMS,
    COMPILED,
    DIGITS_CNN,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    specification,
)
from tests.engine.test_engines import LEAST_SQUARES
from tests.support.accelerated import NEEDS_COMPILED

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
        close = 1e-10 if member.engine == "vectorised" else 0.0
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
def test_all_algorithms_go_together(engine: str) -> None:
    kinds = COMPILED if engine == "compiled" else ALGORITHMS
    specs = [specification(SHORT, algorithm={"kind": kind}, execution={"engine": engine}) for kind in kinds]
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
    assert (ahead.diverged, other.diverged, wild.diverged) == (False, False, True)
    assert torch.isfinite(flat(other)).all()


def test_a_round_that_nobody_reaches_holds_nobody_up() -> None:
    unreachable: Document = {"systems": {"availability": {"kind": "trace", "rounds": [[]]}}}
    nobody, somebody = (
        Simulation(specification(SYNTHETIC, **changes), seed=0) for changes in (unreachable, {})
    )
    empty, full = advance_batch([nobody, somebody])
    assert empty.local_steps == 0 < full.local_steps
    assert (nobody.batched_runs, somebody.batched_runs) == (1, 1)


@dataclass(frozen=True)
class Cubes(ClientRule):
    """Of a form that no recursion has."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad * grad * grad


def test_a_rule_of_any_form_goes_beside_others() -> None:
    def cubing(engine: str) -> Simulation:
        simulation = Simulation(specification(SHORT, execution={"engine": engine}), seed=0)
        algorithm = replace(simulation._setting.algorithm, rule=Cubes())
        simulation._setting = replace(simulation._setting, algorithm=algorithm)
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
        return [Simulation(spec, seed)._setting.problem for seed, spec in enumerate(specs)]

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
    assert restored.batched_runs == 1
    restored.restore(members[0].checkpoint())
    assert (members[0].batched_runs, restored.batched_runs) == (2, 2)
