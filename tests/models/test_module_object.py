"""Modules of the user's process: initial parameters from the seed, or those that the user gave."""

import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import SpecificationError
from fedcore.spec.components import code_of_objects
from fedcore.spec.extension import extend_spec
from fedq.planning.data import start_warnings
from tests.builders.specifications import DIGITS, Document


class Scaled(nn.Module):
    """A layer, and a parameter of its own."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.scale, self.dense = nn.Parameter(torch.randn(64)), nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.dense(images.flatten(1) * self.scale)
        return scores


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


class Adapted(nn.Module):
    """A frozen layer with a trained change of rank 2, as LoRA has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = deepcopy(base).requires_grad_(requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, 64) / 8), nn.Parameter(torch.zeros(10, 2))

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        scores: Tensor = self.base(flat)
        return scores + linear(linear(flat, self.a), self.b)


def experiment(model: Any, **fields: Any) -> ExperimentSpec:
    document: Document = {
        **DIGITS,
        "problem": {**DIGITS["problem"], "model": model},
        "execution": {"precision": "float32"},
        **fields,
    }
    return ExperimentSpec.model_validate(document)


def started(model: Any, seed: int, **fields: Any) -> dict[str, Tensor]:
    return Simulation(experiment(model, **fields), seed).model()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


MAKERS: dict[str, Callable[[], nn.Module] | type[nn.Module]] = {
    "class": Scaled,
    "function": lambda: Scaled(10),
    "partial": partial(Scaled, outputs=10),
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_a_class_or_function_draws_initial_parameters_from_the_seed_of_the_run(maker: Any) -> None:
    spec = experiment(maker, seeds=[0, 1, 2])
    first, second = (Simulation(spec, seed).model() for seed in (0, 1))
    assert not torch.equal(first["scale"], second["scale"])
    assert not torch.equal(first["dense.weight"], second["dense.weight"])
    torch.manual_seed(5)
    assert same(started(maker, 0), first)


def test_global_generators_are_as_they_were() -> None:
    def state() -> list[Any]:
        numpy_state: Any = np.random.get_state()  # noqa: NPY002
        return [torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()]

    before = state()
    spec = experiment(Scaled, seeds=[0, 1])
    Simulation(spec, 1).advance()
    assert state() == before


@pytest.mark.parametrize("draw", [lambda: np.random.rand(64), lambda: [random.random()] * 64])  # noqa: NPY002
def test_parameters_may_come_from_other_global_generators(draw: Callable[[], Any]) -> None:
    def maker() -> nn.Module:
        module = Scaled()
        module.scale.data = torch.tensor(draw(), dtype=torch.float32)
        return module

    assert same(started(maker, 3), started(maker, 3))
    assert not torch.equal(started(maker, 3)["scale"], started(maker, 4)["scale"])


def test_a_function_that_cannot_be_repeated_is_refused() -> None:
    def maker() -> nn.Module:
        module = Scaled()
        module.scale.data = torch.from_numpy(np.random.default_rng().normal(size=64)).float()
        return module

    with pytest.raises(SpecificationError, match="makes other parameters each time; draw them from"):
        experiment(maker)


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        (lambda size: nn.Linear(64, size), r"cannot make a module without arguments .*: pass `lambda: Net"),
        (nn.Linear, "Linear cannot make a module without arguments"),
        (lambda: 3, "returned int; it must return a torch.nn.Module"),
    ],
)
def test_objects_that_make_no_module_are_refused(maker: Any, told: str) -> None:
    with pytest.raises(SpecificationError, match=told):
        experiment(maker)


@pytest.mark.parametrize("model", [nn.Sequential, nn.Sequential(nn.Flatten())])
def test_a_module_without_parameters_is_refused_for_that(model: Any) -> None:
    with pytest.raises(SpecificationError, match="has no parameters to be trained"):
        experiment(model, seeds=[0, 1])


def test_a_module_that_is_made_is_where_its_runs_start_whatever_the_user_does_with_it_later() -> None:
    module = Scaled()  # pretrained, say
    before = {name: value.clone() for name, value in module.state_dict().items()}
    spec = experiment({"kind": "object", "module": module, "initial": "shared"}, seeds=[0, 1])
    with torch.no_grad():
        module.scale.zero_()
    for seed in (0, 1):
        assert same(Simulation(spec, seed).model(), before)
    Simulation(spec, 0).advance()
    assert not module.scale.any()


made = Scaled()
ONE_START = {"module": made, "function": lambda: made, "block": {"kind": "object", "module": made}}


@pytest.mark.parametrize("model", ONE_START.values(), ids=ONE_START)
def test_seeds_with_one_start_must_say_so(model: Any) -> None:
    experiment(model, seeds=[7])
    for fields in ({"seeds": [0, 1]}, {"seeds": [0, 1], "sweep": {"local.lr": [0.1, 0.2]}}):
        with pytest.raises(SpecificationError, match=r'`lambda: Net\(\)`.*"initial": "shared"') as refused:
            experiment(model, **fields)
        assert refused.value.pointer == "/problem/model/initial"
    with pytest.raises(SpecificationError, match=r'"initial": "shared"'):
        extend_spec(experiment(model, seeds=[7]), None, [8])
    given = model if isinstance(model, dict) else {"kind": "object", "module": model}
    assert len(experiment({**given, "initial": "shared"}, seeds=[0, 1]).seeds) == 2


def test_a_shared_start_is_part_of_the_record() -> None:
    shared = {"kind": "object", "module": made, "initial": "shared"}
    spec = experiment(shared, seeds=[0, 1])
    assert spec.model_dump(mode="json")["problem"]["model"]["initial"] == "shared"
    assert [one.initial for one in code_of_objects(spec)] == ["shared"]
    assert [one.initial for one in code_of_objects(experiment(Scaled))] == [None]


def test_modules_can_be_swept_with_their_fields() -> None:
    models = [Scaled, lambda: Scaled(10), {"kind": "object", "module": Normalised, "batch_norm": "local"}]
    spec = experiment({"kind": "logistic"}, seeds=[0, 1], sweep={"problem.model": models})
    arms = spec.arms()
    swept: list[Any] = [arm.spec.problem.model for arm in arms]
    assert [model.batch_norm for model in swept] == [None, None, "local"]
    assert same(Simulation(arms[0].spec, 1).model(), started(Scaled, 1))
    listed = [{"name": "own", "problem.model": {"kind": "object", "module": Scaled, "l2": 0.1}}]
    (arm,) = experiment({"kind": "logistic"}, sweep={"arms": listed}).arms()
    assert arm.spec.problem.model is not None
    assert arm.spec.problem.model.l2 == 0.1


def test_an_adapter_is_trained_on_a_frozen_base_that_all_seeds_share() -> None:
    base = nn.Linear(64, 10)
    spec = experiment(lambda: Adapted(base), seeds=[0, 1])
    runs = [Simulation(spec, seed) for seed in (0, 1)]
    first, second = (run.model() for run in runs)
    assert first.keys() == {"a", "b"}
    assert not torch.equal(first["a"], second["a"])
    report = runs[0].advance()
    assert report.bytes_up == len(runs[0].context.problem.sizes) * 4 * (2 * 64 + 2 * 10)
    module = Adapted(base)
    module.load_state_dict(runs[0].model(), strict=False)
    test = runs[0].context.problem.data.dataset.test  # type: ignore[attr-defined]
    with torch.no_grad():
        right = module(test.features).argmax(1) == test.labels
    assert report.test_accuracy == pytest.approx(float(right.double().mean()), abs=1e-12)


def test_the_error_of_batch_norm_says_where_a_module_declares_its_policy() -> None:
    with pytest.raises(SpecificationError, match=r'"module": net, "batch_norm": "average"') as refused:
        experiment(Normalised)
    assert refused.value.pointer == "/problem/model/batch_norm"
    for policy in ("average", "local", "frozen", "group"):
        spec = experiment({"kind": "object", "module": Normalised, "batch_norm": policy}, seeds=[0, 1])
        assert Simulation(spec, 1).advance().train_loss is not None


def test_the_source_of_a_class_or_function_is_named() -> None:
    def maker() -> nn.Module:
        return Scaled()

    named = [code_of_objects(experiment(model))[0].name for model in (Scaled, Scaled(), maker)]
    assert named[:2] == ["Scaled", "Scaled"]
    assert named[2].endswith("maker")


class Activated(nn.Module):
    """A network whose parameters and description are the same with any `act`."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act, self.dense = act, nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.dense(self.act(images.flatten(1)))
        return scores


def losses(spec: ExperimentSpec) -> float | None:
    return Simulation(spec, 0).advance().train_loss


ACTS = (torch.relu, torch.tanh, torch.neg)
WAYS: dict[str, Callable[[Any], Any]] = {
    "lambdas": lambda act: lambda: Activated(act),
    "partials": lambda act: partial(Activated, act),
    "classes": lambda act: type(
        "Net", (Activated,), {"__init__": lambda self: Activated.__init__(self, act)}
    ),
    "modules": Activated,
    "blocks": lambda act: {"kind": "object", "module": Activated(act)},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_module_that_differs_in_code_alone_is_another_model(way: Callable[[Any], Any]) -> None:
    def given(act: Any) -> Any:
        torch.manual_seed(0)
        return way(act)

    alone = [losses(experiment(given(act))) for act in ACTS]
    assert len(set(alone)) == 3
    spec = experiment({"kind": "logistic"}, sweep={"problem.model": [given(act) for act in ACTS]})
    for swept in (spec, spec.model_copy(), ExperimentSpec.model_validate(spec.model_dump(mode="json"))):
        assert [losses(arm.spec) for arm in swept.arms()] == alone
    again = [{"problem": {**DIGITS["problem"], "model": given(act)}} for act in ACTS]
    joint = experiment({"kind": "logistic"}, sweep={"arms": again}).arms()
    assert [losses(arm.spec) for arm in joint] == alone


def test_a_class_or_function_is_one_model_and_a_module_another_each_time() -> None:
    made: Any = partial(Scaled, 10)
    for maker in (Scaled, made):
        first, second = experiment(maker), experiment({"kind": "object", "module": maker})
        assert first == second
        assert ExperimentSpec.model_validate(first.model_dump(mode="json")) == first
        assert deepcopy(first) == first
    module = Activated(torch.relu)
    first = experiment(module)
    before = losses(first)
    module.act = torch.tanh
    second = experiment(module)
    assert first != second
    assert losses(second) != before
    assert losses(first) == before


def test_a_run_resumes_with_the_class_that_another_process_defines() -> None:
    def again() -> ExperimentSpec:
        return experiment(type("Net", (Scaled,), {"__module__": __name__}))

    run, other = Simulation(again(), 0), Simulation(again(), 0)
    run.advance()
    other.restore(run.checkpoint())
    assert other.advance().train_loss == run.advance().train_loss


def test_a_class_that_draws_its_parameters_shares_no_start() -> None:
    for seeds in ([0], [0, 1]):
        with pytest.raises(SpecificationError, match=r"draws other parameters .* omit `initial`") as refused:
            experiment({"kind": "object", "module": Scaled, "initial": "shared"}, seeds=seeds)
        assert refused.value.pointer == "/problem/model/initial"


def test_plans_say_that_seeds_have_one_start() -> None:
    shared = {"kind": "object", "module": Scaled(), "initial": "shared"}
    assert "one start for all 2 seeds" in start_warnings(experiment(shared, seeds=[0, 1]))[0]
    pretrained = {"kind": "object", "module": Scaled, "weights": "sha256:" + "0" * 64}
    assert "that of `weights`" in start_warnings(experiment(pretrained, seeds=[0, 1]))[0]
    for spec in (experiment(pretrained, seeds=[0]), experiment(Scaled, seeds=[0, 1])):
        assert not start_warnings(spec)


def patched() -> nn.Module:
    module = Scaled()
    original = module.forward
    module.forward = lambda images: 2 * original(images)  # type: ignore[method-assign]
    return module


class Detached(Scaled):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class WithoutGradient(Scaled):
    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)


@pytest.mark.parametrize("make", [patched, Detached, WithoutGradient])
def test_scores_without_a_gradient_are_refused_before_the_first_round(make: Any) -> None:
    with pytest.raises(
        SpecificationError, match="depends on none of the parameters that are trained"
    ) as told:
        Simulation(experiment(make()), 0)
    assert told.value.pointer == "/problem/model"


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (lambda: nn.LazyLinear(10), "1 is a LazyLinear, whose parameters have no shape yet: call"),
        (lambda: nn.SyncBatchNorm(64), "1 is a SyncBatchNorm, .* use nn.BatchNorm1d"),
    ],
)
def test_layers_that_cannot_be_trained_are_named(layer: Callable[[], nn.Module], told: str) -> None:
    def maker() -> nn.Module:
        return nn.Sequential(nn.Flatten(), layer())

    for model in (maker, maker()):
        with pytest.raises(SpecificationError, match=told):
            experiment(model)
