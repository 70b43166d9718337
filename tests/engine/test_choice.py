"""`auto`: the rule that picks the engine, which knows neither time nor load, and that a run keeps its
engine.
"""

import time
from typing import Any

import pytest
import torch

from fedcore import ExperimentSpec, Simulation
from fedcore.engine.choice import STACKED_PARAMETERS, EngineChoice, choose_engine, engine_by_rule
from fedcore.engine.engines import EngineName
from fedcore.errors import SpecificationError
from fedcore.simulation.local_run import run
from fedcore.spec.engines import ArmFacts, facts_about
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, Document, specification
from tests.support.accelerated import NEEDS_COMPILED

pytestmark = NEEDS_COMPILED
MLP = {"problem.model": {"kind": "mlp", "hidden": [200]}}
SMALL_MLP = {"problem.model": {"kind": "mlp", "hidden": [8]}}
CNN = {"problem.model": {"kind": "cnn", "channels": [2, 3], "hidden": 4}}
NOT_AFFINE = {"algorithm": {"kind": "fedsam", "rho": 0.05}}
LARGE = {"problem.model": {"kind": "mlp", "hidden": [400, 400]}}


def arms(*changes: Document, **more: Any) -> ExperimentSpec:
    """An experiment on the digits, one arm for each of `changes`."""
    return specification(
        DIGITS, sweep={"arms": [{"name": str(i), **one} for i, one in enumerate(changes)]}, **more
    )


def engines(spec: ExperimentSpec) -> list[EngineName]:
    facts = facts_about(spec)
    return [Simulation(arm.spec, seed=0, arms=facts).facts.choice.engine for arm in spec.arms()]


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({}, "compiled"),
        (LARGE, "compiled"),
        (NOT_AFFINE, "vectorised"),
        (LARGE | NOT_AFFINE, "parallel"),
        (CNN, "parallel"),
        ({"local.optimizer": {"kind": "adam"}}, "vectorised"),
    ],
    ids=["softmax", "large MLP", "softmax, FedSAM", "large MLP, FedSAM", "CNN", "softmax, Adam"],
)
def test_the_rule_follows_the_model_and_the_algorithm(changes: Document, engine: EngineName) -> None:
    assert engines(arms(changes)) == [engine]


def test_an_exact_problem_is_stacked() -> None:
    assert Simulation(specification(QUADRATIC), seed=0).facts.choice == EngineChoice("vectorised", "rule")


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        (({}, {"algorithm": {"kind": "scaffold"}}, {"local.batch_size": 64}), "compiled"),
        (({}, SMALL_MLP), "compiled"),
        (({}, NOT_AFFINE), "vectorised"),
        (({}, CNN), "parallel"),
        ((SMALL_MLP | NOT_AFFINE, LARGE), "parallel"),
    ],
    ids=["all affine", "two models", "one not affine", "one convolutional", "one large"],
)
def test_arms_of_an_experiment_have_one_engine(changes: tuple[Document, ...], engine: EngineName) -> None:
    assert engines(arms(*changes)) == [engine] * len(changes)


def test_trials_of_a_study_have_one_engine() -> None:
    space = {
        "local.clip_norm": {"kind": "choice", "values": [None, 1.0]},
        "local.lr": {"kind": "float", "low": 0.01, "high": 0.1},
    }
    proposed = [{"local.clip_norm": None, "local.lr": 0.05}, {"local.clip_norm": 1.0, "local.lr": 0.05}]
    search = {"kind": "study", "trials": 2, "metric": "test_accuracy", "space": space, "proposed": proposed}
    assert engines(specification(DIGITS, search=search)) == ["vectorised"] * 2


def test_a_run_without_a_service_asks_for_the_engine_of_all_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    begin = Simulation.begin

    def noted(self: Simulation) -> Any:
        seen.append(self.facts.choice.engine)
        return begin(self)

    monkeypatch.setattr(Simulation, "begin", noted)
    for _ in run(arms({}, NOT_AFFINE, rounds=1)):
        pass
    assert seen == ["vectorised"] * 2


def test_engine_changes_with_neither_time_nor_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def ticking() -> float:
        raise AssertionError("the choice of an engine reads a clock")

    setting = Simulation(specification(SYNTHETIC), seed=0).context
    for clock in ("perf_counter", "process_time", "thread_time", "monotonic", "time"):
        monkeypatch.setattr(time, clock, ticking)
    facts, cpu, threads = facts_about(setting.spec), torch.device("cpu"), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert engine_by_rule(setting.algorithm, setting.problem, cpu, facts) == "compiled"
    finally:
        torch.set_num_threads(threads)


def test_a_gpu_stacks_dense_networks_of_any_size() -> None:
    setting = Simulation(specification(QUADRATIC), seed=0).context
    large = ArmFacts(compiled=True, stacked=True, parameters=STACKED_PARAMETERS + 1)
    chosen = [
        engine_by_rule(setting.algorithm, setting.problem, torch.device(kind), large)
        for kind in ("cpu", "cuda")
    ]
    assert chosen == ["parallel", "vectorised"]


def test_a_recorded_engine_goes_on() -> None:
    recorded = EngineChoice("parallel", "rule")
    assert Simulation(specification(SYNTHETIC), seed=0, choice=recorded).facts.choice == recorded
    assert EngineChoice.of(recorded.document()) == recorded


def test_a_recorded_engine_that_cannot_go_on_here_is_named_beside_the_new_one() -> None:
    made = Simulation(specification(QUADRATIC), seed=0, choice=EngineChoice("compiled", "rule")).facts.choice
    assert made == EngineChoice("vectorised", "rule", instead_of="compiled")


def test_an_engine_by_name_is_forced() -> None:
    setting = Simulation(specification(SYNTHETIC), seed=0).context
    facts, recorded = facts_about(setting.spec), EngineChoice("compiled", "rule")
    made = choose_engine(
        "reference", setting.algorithm, setting.problem, torch.device("cpu"), facts, recorded
    )
    assert made == EngineChoice("reference", "forced")


@pytest.mark.parametrize("document", [None, {}, {"engine": "warp", "how": "rule"}, "compiled"])
def test_engine_recorded_otherwise_counts_as_none(document: object) -> None:
    assert EngineChoice.of(document) is None


def test_a_run_taken_over_elsewhere_goes_on_with_its_engine_in_the_same_bits() -> None:
    spec, elsewhere = specification(SYNTHETIC, rounds=4), EngineChoice("vectorised", "rule")
    whole = Simulation(spec, seed=0, choice=elsewhere)
    begun = Simulation(spec, seed=0, choice=elsewhere)
    losses = [whole.advance().train_loss for _ in range(4)]
    begun.advance()
    resumed = Simulation(spec, seed=0)
    engines = [resumed.facts.choice.engine]
    resumed.restore(begun.checkpoint())
    assert [*engines, resumed.facts.choice.engine] == ["compiled", "vectorised"]
    assert [resumed.advance().train_loss for _ in range(3)] == losses[1:]


def test_an_engine_that_is_not_made_for_the_problem_is_refused_by_what_it_is_made_for() -> None:
    with pytest.raises(SpecificationError, match="`compiled` supports only"):
        Simulation(specification(QUADRATIC, execution={"engine": "compiled"}), seed=0)
