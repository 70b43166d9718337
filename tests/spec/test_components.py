"""Objects of users' own classes in a specification, without registration."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.fedavg import FedAvg
from fedcore.core import ClientContext, Rule
from fedcore.simulation.local_run import run
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.spec.components import code_of_objects, local_components
from fedcore.spec.kinds import list_kinds
from fedq.client.bodies import body_of
from fedq.client.errors import UnreadableSpecificationError

LEAST_SQUARES = {"dataset": {"kind": "least_squares", "generate": {"clients": 4, "dim": 3, "seed": 1}}}
DIGITS = {"dataset": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 3}}


@dataclass(frozen=True)
class Scaled(Rule):
    factor: float = 0.5

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return self.factor * grad


class HalfSpeed(AlgorithmSpec):
    """FedAvg with a share of each gradient."""

    kind: Literal["half_speed"] = "half_speed"
    factor: float = 0.5
    """Share of the gradient."""

    def rule(self) -> Rule:
        return Scaled(self.factor)


def experiment(algorithm: Any, problem: Any = LEAST_SQUARES, **fields: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {"name": "own", "problem": problem, "algorithm": algorithm, "rounds": 3}
        | {"local": {"lr": 0.1, "steps": 2}, **fields}
    )


def losses(spec: ExperimentSpec) -> list[float | None]:
    return [report.train_loss for report in run(spec)]


def test_an_object_of_an_own_class_runs_as_its_mathematics_says() -> None:
    half = losses(experiment(HalfSpeed(factor=0.5)))
    assert half == pytest.approx(
        losses(experiment({"kind": "fedavg"}, local={"lr": 0.05, "steps": 2})), rel=1e-12
    )


def test_a_dump_of_a_specification_with_an_object_can_be_read_in_the_same_process() -> None:
    spec = experiment(HalfSpeed(factor=0.25))
    assert ExperimentSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_objects_can_be_swept_beside_built_in_kinds() -> None:
    spec = experiment({"kind": "fedavg"}, sweep={"algorithm": [FedAvg(), HalfSpeed()]}, seeds=[0, 1])
    assert [arm.spec.algorithm for arm in spec.arms()] == [FedAvg(), HalfSpeed()]
    assert len(losses(spec)) == 2 * 2 * 3


def test_fields_of_an_object_can_be_swept() -> None:
    spec = experiment(HalfSpeed(), sweep={"algorithm.factor": [0.1, 1.0]})
    assert [arm.spec.algorithm for arm in spec.arms()] == [HalfSpeed(factor=0.1), HalfSpeed(factor=1.0)]


def test_an_object_resumes_from_a_checkpoint() -> None:
    spec = experiment(HalfSpeed())
    whole, first = Simulation(spec, 0), Simulation(spec, 0)
    expected = [whole.advance() for _ in range(3)]
    first.advance()
    second = Simulation(spec, 0)
    second.restore(first.checkpoint())
    assert [second.advance().train_loss for _ in range(2)] == [report.train_loss for report in expected[1:]]


def test_a_kind_that_is_taken_is_refused() -> None:
    class Impostor(AlgorithmSpec):
        kind: Literal["fedavg"] = "fedavg"

    with pytest.raises(ValueError, match="kind 'fedavg' of Impostor is that of FedAvg; choose another kind"):
        experiment(Impostor())


def test_components_that_only_this_process_knows_are_found() -> None:
    assert list(local_components(experiment(HalfSpeed()))) == [HalfSpeed()]
    assert list(local_components(experiment({"kind": "fedprox", "mu": 0.1}))) == []


def test_the_kinds_that_a_service_offers_are_without_those_of_objects() -> None:
    experiment(HalfSpeed())
    list_kinds.cache_clear()
    assert HalfSpeed not in list_kinds()["algorithm"]


def test_the_code_of_objects_is_named_by_class_module_and_digest_of_the_source() -> None:
    here = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    own = ("algorithms", "HalfSpeed", __name__, here, None)
    sweep = {"algorithm": [FedAvg(), HalfSpeed(), HalfSpeed(factor=0.1)]}
    assert code_of_objects(experiment({"kind": "fedavg"}, sweep=sweep)) == [own]
    source = Path(inspect.getfile(nn.Linear)).read_bytes()
    model = ("models", "Linear", "torch.nn.modules.linear", hashlib.sha256(source).hexdigest(), None)
    problem = {**DIGITS, "dataset": {"kind": "synthetic", "clients": 3}, "model": nn.Linear(60, 10)}
    del problem["partition"]
    assert code_of_objects(experiment(HalfSpeed(), problem)) == [model, own]
    namespace: dict[str, Any] = {"AlgorithmSpec": AlgorithmSpec, "Literal": Literal, "__name__": "typed"}
    source_code = "class Typed(AlgorithmSpec):\n    kind: Literal['typed'] = 'typed'"
    exec(compile(source_code, "<prompt>", "exec", dont_inherit=True), namespace)
    assert code_of_objects(experiment(namespace["Typed"]())) == [("algorithms", "Typed", "typed", None, None)]


def test_a_submission_with_an_object_names_it_and_the_other_ways() -> None:
    swept = experiment({"kind": "fedavg"}, sweep={"algorithm": [FedAvg(), HalfSpeed()]})
    for spec in (experiment(HalfSpeed()), swept):
        with pytest.raises(
            UnreadableSpecificationError, match=r"HalfSpeed of .*`code=`.* package .*fedq\.run"
        ):
            body_of(spec, {})


def test_an_own_module_trains_as_the_built_in_model_of_the_same_layers() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    problem = {**DIGITS, "model": module}
    spec = experiment({"kind": "fedavg"}, problem)
    weight = next(module.parameters()).clone()
    simulation = Simulation(spec, 0)
    assert torch.equal(simulation.model()["1.weight"], weight)
    rows = losses(spec)
    assert len(rows) == 3
    assert rows[0] is not None
    assert rows[2] is not None
    assert rows[2] < rows[0]
    assert torch.equal(next(module.parameters()), weight)
