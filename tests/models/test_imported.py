"""Models by import path: only those allowed, and only those that the engines can train."""

from typing import Any

import pytest
import torch

from fedcore import run
from fedcore.errors import SpecificationError
from fedcore.models.imported import Imported
from fedcore.models.layers import build_module
from fedcore.simulation.simulation import Simulation
from fedcore.spec.checks import check_allowed_models
from tests.builders.specifications import SYNTHETIC, Document, merged, specification

FACTORIES = ["tests.models.factories:*"]
SHAPE, CLASSES = (60,), 10


def own(factory: str, parameters: int = 610, **others: Any) -> Document:
    """A model by import path."""
    return {"kind": "import", "path": f"tests.models.factories:{factory}", "parameters": parameters, **others}


def _build(factory: str, parameters: int = 610) -> torch.nn.Module:
    return build_module(Imported.model_validate(own(factory, parameters)), SHAPE, CLASSES, seed=0)


def _reports(document: Document) -> list[Any]:
    simulation = Simulation(specification(document), 0, models_allowed=FACTORIES)
    return [
        (row.train_loss, row.test_accuracy, row.bytes_up) for row in (simulation.advance() for _ in range(4))
    ]


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_a_factory_that_makes_a_built_in_model_trains_as_that_does(loss: str) -> None:
    built_in = {"cross_entropy": "logistic", "squared_error": "linear"}[loss]
    imported = {**SYNTHETIC["problem"], "model": own("plain", loss=loss, l2=0.1)}
    assert _reports(SYNTHETIC | {"problem": imported}) == _reports(
        merged(SYNTHETIC, {"problem": {"model": {"kind": built_in, "l2": 0.1}}})
    )


def test_engines_agree_on_a_network_of_any_make_and_it_goes_on_from_a_checkpoint() -> None:
    count = sum(parameter.numel() for parameter in torch.nn.MultiheadAttention(8, 2).parameters()) + 8 + 90
    document = {
        **SYNTHETIC,
        "problem": {
            "dataset": {"kind": "digits"},
            "partition": {"kind": "iid", "clients": 8},
            "model": own("Attention", count),
        },
        "local": {"lr": 0.1, "steps": 2, "batch_size": 8},
        "rounds": 2,
    }
    models = []
    for engine in ("reference", "parallel", "vectorised"):
        simulation = Simulation(
            specification(merged(document, {"execution": {"engine": engine}})), 0, models_allowed=FACTORIES
        )
        simulation.advance()
        later = Simulation(simulation.spec, 0, models_allowed=FACTORIES)
        later.restore(simulation.checkpoint())
        for one in (simulation, later):
            one.advance()
        assert all(torch.equal(later.model()[name], value) for name, value in simulation.model().items())
        models.append(simulation.model())
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=0, atol=1e-9)


def test_initial_parameters_come_from_the_seed_alone() -> None:
    first, other = _build("plain"), _build("plain")
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(first.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("factory", "pointer", "told"),
    [
        ("nothing", "/path", "cannot be imported by this worker: AttributeError"),
        ("getcwd", "/path", "must be a function or class that tests.models.factories defines itself"),
        ("constant", "/path", "must be a function or class"),
        ("broken", "/path", "failed for samples of shape [60] and 10 outputs: KeyError: 'weights.pt'"),
        ("number", "/path", "returned int; it must return a torch.nn.Module"),
        ("frozen", "/path", "has no parameters that are trained"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(
    factory: str, pointer: str, told: str
) -> None:
    with pytest.raises(SpecificationError) as refused:
        _build(factory)
    assert (refused.value.pointer, told in refused.value.detail) == (f"/problem/model{pointer}", True), (
        refused.value
    )


@pytest.mark.parametrize(
    ("factory", "parameters", "told"),
    [
        ("wide", 671, "gives [3, 11] of float64 in evaluation for 3 samples with labels [3], instead of"),
        ("narrow", 40, "fails in evaluation for features [3, 60] of float64: RuntimeError"),
        ("forgetful", 611, "factories:forgetful has 610 parameters, not 611"),
        ("normalised", 730, "running statistics differ between clients; declare a policy: `average`"),
    ],
)
def test_scores_and_buffers_are_looked_at(factory: str, parameters: int, told: str) -> None:
    problem = {**SYNTHETIC["problem"], "model": own(factory, parameters)}
    with pytest.raises(SpecificationError) as refused:
        Simulation(specification(SYNTHETIC | {"problem": problem}), 0, models_allowed=FACTORIES)
    assert told in refused.value.detail


def test_a_module_that_is_not_there_is_named() -> None:
    spec = Imported.model_validate(own("plain") | {"path": "tests.nowhere:plain"})
    with pytest.raises(SpecificationError, match=r"ModuleNotFoundError: No module named 'tests\.nowhere'"):
        build_module(spec, SHAPE, CLASSES, seed=0)


@pytest.mark.parametrize(
    ("patterns", "told"),
    [
        ([], "the operator can enable them with FEDQ_MODELS_ALLOWED"),
        (["lab.*", "tests.models.other:*"], "FEDQ_MODELS_ALLOWED: lab.*, tests"),
    ],
)
def test_models_that_the_process_does_not_allow_are_not_imported(patterns: list[str], told: str) -> None:
    model = own("plain") | {"path": "tests.models.never_imported:plain"}
    spec = specification(SYNTHETIC | {"problem": {**SYNTHETIC["problem"], "model": model}})
    for start in (
        lambda: Simulation(spec, 0, models_allowed=patterns),
        lambda: next(run(spec, models_allowed=patterns)),
    ):
        with pytest.raises(SpecificationError, match=r"FEDQ_MODELS_ALLOWED") as refused:
            start()
        assert (refused.value.pointer, told in refused.value.detail) == ("/problem/model/path", True)


@pytest.mark.parametrize(
    "path", ["plain", "a.b:", ":c", "a b:c", "a..b:c", "os:system('x')", "a:b.c", "/etc/passwd:x"]
)
def test_a_path_names_a_module_and_a_name_in_it(path: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Imported.model_validate(own("plain") | {"path": path})


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": {**SYNTHETIC["problem"], "model": own("plain")}},
        {"sweep": {"problem.model": [{"kind": "logistic"}, own("plain")]}},
        {"sweep": {"problem": [{**SYNTHETIC["problem"], "model": own("plain")}]}},
    ],
)
def test_every_arm_is_looked_at(changes: Document) -> None:
    spec = specification(SYNTHETIC | changes)
    check_allowed_models(spec, ["tests.models.factories:pl*"])
    with pytest.raises(SpecificationError):
        check_allowed_models(spec, ["tests.models.factories:Pl*"])


def test_built_in_models_need_no_leave() -> None:
    check_allowed_models(specification(SYNTHETIC, sweep={"problem.model.l2": [0.0, 0.1]}), [])
