"""Networks with dropout, batch norm and frozen layers, trained by every engine."""

from copy import deepcopy
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import SpecificationError
from fedcore.models.imported import Imported
from fedcore.models.layers import build_module
from fedcore.models.module_object import ModuleObject
from fedcore.random import generator
from fedcore.simulation.simulation import advance_batch
from fedcore.testing import runs
from tests.builders.specifications import DIGITS_CNN, Document, merged, specification
from tests.models.factories import batch_normalised

pytestmark = pytest.mark.usefixtures("factories_allowed")
ENGINES = ("reference", "parallel", "vectorised")
POLICIES = ("average", "local", "frozen", "group")
PARAMETERS = {
    "trained_head": 1_090,
    "batch_normalised": 40 + 8 + 222 + 12 + 70,
    "normalised_and_dropped": 40 + 8 + 222 + 12 + 70,
    "EveryDropout": 460,
    "forgetful": 650,
    "forgetful_cnn": 40 + 370,
}
NORMS = 20
"""Parameters of batch norm; there are as many means and variances."""
STATISTICS = NORMS + 2
"""With the number of batches of each layer."""


def own(factory: str, **others: Any) -> Document:
    count = PARAMETERS.get(factory, 650) - NORMS * (others.get("batch_norm") in ("local", "frozen"))
    return {
        "kind": "import",
        "path": f"tests.models.factories:{factory}",
        "parameters": count,
        "l2": 0.01,
        **others,
    }


def network(model: Document, **changes: Any) -> Document:
    """Ragged cohorts with short last batches, and one batch of all samples."""
    problem = {**DIGITS_CNN["problem"], "model": model}
    return merged({**DIGITS_CNN, "problem": problem}, changes)


def played(document: Document, engine: str, seed: int = 0) -> Simulation:
    simulation = Simulation(specification(document, execution={"engine": engine}), seed)
    while not simulation.finished:
        simulation.advance()
    return simulation


def assert_equal(first: Simulation, second: Simulation, atol: float) -> None:
    ours, theirs = first.model(), second.model()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol)


CASES = {
    "frozen body": own("trained_head"),
    "dropout": own("forgetful"),
    "every dropout": own("EveryDropout"),
    **{policy: own("batch_normalised", batch_norm=policy) for policy in POLICIES},
    "average with dropout": own("normalised_and_dropped", batch_norm="average"),
    "dropout by hand": own("forgetful_cnn"),
}


TRAINED_BY = ("fedavg", "scaffold", "fedsvrg", "pooled")


def assert_engines_agree(case: str, algorithm: str) -> None:
    document = network(CASES[case]) | {"algorithm": {"kind": algorithm}}
    expected = played(document, "reference")
    for engine in ENGINES[1:]:
        assert_equal(played(document, engine), expected, atol=1e-9)


@pytest.mark.parametrize(("case", "algorithm"), [*zip(CASES, cycle(TRAINED_BY), strict=False)])
def test_engines_agree_on_networks_of_every_kind(case: str, algorithm: str) -> None:
    assert_engines_agree(case, algorithm)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "algorithm"),
    # Pooled samples belong to no client that could keep batch norm.
    [pair for pair in product(CASES, TRAINED_BY) if pair != ("local", "pooled")],
)
def test_engines_agree_on_networks_of_every_kind_under_every_algorithm(case: str, algorithm: str) -> None:
    assert_engines_agree(case, algorithm)


def in_turn(*cases: str) -> list[Any]:
    """Each case in one engine after the other, and in the others at night."""
    return [
        pytest.param(case, engine, marks=() if number % len(ENGINES) == turn else pytest.mark.nightly)
        for number, case in enumerate(cases)
        for turn, engine in enumerate(ENGINES)
    ]


@pytest.mark.parametrize(("case", "engine"), in_turn(*CASES))
def test_a_network_goes_on_from_any_round_to_the_bit(case: str, engine: str) -> None:
    document = network(
        CASES[case], execution={"engine": engine}, participation={"kind": "uniform", "clients_per_round": 2}
    )
    runs.resumes_at_every_round(lambda: specification(document, rounds=3))


FULL = {"local": {"lr": 0.1, "steps": 3, "batch_size": "full"}, "algorithm": {"kind": "fedavg"}}


def whole_batches(model: Document, clients: int = 1, **changes: Any) -> ExperimentSpec:
    """Clients that take three steps on all their samples, in a round with all clients."""
    base = {name: value for name, value in network(model).items() if name != "systems"}
    base["evaluation"] = {"measures": ["train_loss"]}
    partition = {"kind": "iid", "clients": clients}
    return specification(
        merged({**base, **FULL, "rounds": 2}, {"problem": {"partition": partition}, **changes})
    )


def samples_of(simulation: Simulation, client: int) -> tuple[Tensor, Tensor]:
    held = simulation.context.evaluated.samples(client)  # type: ignore[attr-defined]
    return held.features, held.labels


def module_of(spec: ExperimentSpec, seed: int = 0) -> nn.Module:
    assert spec.problem.model is not None
    return build_module(spec.problem.model, (1, 8, 8), 10, seed).double()


def descend(module: nn.Module, features: Tensor, labels: Tensor) -> None:
    """Three steps of plain PyTorch."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(3):
        optimiser.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(module(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_are_those_of_the_keyed_stream_of_client_and_step(engine: str) -> None:
    """Written out by hand: scores of a linear model, half of them dropped."""
    spec = whole_batches(own("forgetful"), rounds=1, execution={"engine": engine})
    simulation, module = Simulation(spec, 0), module_of(spec)
    features, labels = samples_of(simulation, 0)
    weight, bias = (parameter.detach().clone() for parameter in module.parameters())
    for step in range(3):
        uniform = generator(0, "dropout", 1, 0, step).random((len(labels), 10), dtype=np.float32)
        kept = torch.from_numpy(uniform >= 0.5).double()
        scores = (features.flatten(1) @ weight.T + bias) * kept / 0.5
        error = (scores.softmax(1) - nn.functional.one_hot(labels, 10)) * kept / 0.5 / len(labels)
        weight, bias = (
            weight - 0.1 * (error.T @ features.flatten(1) + 0.01 * weight),
            bias - 0.1 * (error.sum(0) + 0.01 * bias),
        )
    simulation.advance()
    torch.testing.assert_close(list(simulation.model().values()), [weight, bias], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_averaged_batch_norm_is_that_of_plain_pytorch_averaged_over_clients(engine: str) -> None:
    spec = whole_batches(own("batch_normalised", batch_norm="average"), 2, execution={"engine": engine})
    simulation, module = Simulation(spec, 0), module_of(spec).train()
    first, second = simulation.context.evaluated.share.tolist()
    for _ in range(2):
        states = []
        for client in range(2):
            copy = deepcopy(module)
            descend(copy, *samples_of(simulation, client))
            states.append(copy.state_dict())
        module.load_state_dict(
            {
                name: value if value.dtype == torch.int64 else first * value + second * states[1][name]
                for name, value in states[0].items()
            }
        )
        simulation.advance()
    model = simulation.model()
    assert model.keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(model[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_local_batch_norm_is_fedbn_written_out_in_plain_pytorch(engine: str) -> None:
    """Li et al. (2021), Algorithm 1: all but batch norm is averaged."""
    spec = whole_batches(own("batch_normalised", batch_norm="local"), 2, execution={"engine": engine})
    simulation, modules = Simulation(spec, 0), [module_of(spec).train() for _ in range(2)]
    share, shared, report = simulation.context.evaluated.share, dict[str, Tensor](), simulation.advance()
    for play in range(2):
        for client, module in enumerate(modules):
            descend(module, *samples_of(simulation, client))
        first, second = (module.state_dict() for module in modules)
        shared = {
            name: share[0] * value + share[1] * second[name]
            for name, value in first.items()
            if not name.startswith(("1.", "5."))
        }
        for module in modules:
            module.load_state_dict(shared, strict=False)
        if play:
            report = simulation.advance()
    for name, value in shared.items():
        torch.testing.assert_close(simulation.model()[name], value, rtol=0, atol=1e-12)
    losses = []
    for client, module in enumerate(modules):
        features, labels = samples_of(simulation, client)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(module.eval()(features), labels)
        penalty = sum(float(parameter.detach().square().sum()) for parameter in module.parameters())
        losses.append(float(loss) + 0.005 * penalty)
    assert report.train_loss == pytest.approx(float(share @ losses), abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_batch_norm_is_a_constant_and_grouped_is_group_norm(engine: str) -> None:
    for policy in ("frozen", "group"):
        spec = whole_batches(
            own("batch_normalised", batch_norm=policy), rounds=1, execution={"engine": engine}
        )
        simulation, module = Simulation(spec, 0), module_of(spec)
        norms = [layer for layer in module.children() if isinstance(layer, nn.GroupNorm)]
        assert [layer.num_groups for layer in norms] == ([2, 2] if policy == "group" else [])
        simulation.advance()
        descend(module, *samples_of(simulation, 0))
        model = simulation.model()
        assert model.keys() == {name for name, value in module.named_parameters() if value.requires_grad}
        for name, value in model.items():
            torch.testing.assert_close(value, module.get_parameter(name).detach(), rtol=0, atol=1e-12)


def test_averaged_statistics_travel_with_the_model_and_local_ones_do_not() -> None:
    sent = {
        policy: played(network(own("batch_normalised", batch_norm=policy)) | FULL, "parallel")
        for policy in POLICIES
    }
    spec = {policy: simulation.spec for policy, simulation in sent.items()}
    numbers = {"average": 352 + STATISTICS, "local": 352 - NORMS, "frozen": 352 - NORMS, "group": 352}
    for policy, count in numbers.items():
        report = Simulation(spec[policy], 0).advance()
        assert report.bytes_up == report.bytes_down == 4 * 8 * count, policy


@pytest.mark.parametrize(
    "case", ["average with dropout", "local", pytest.param("every dropout", marks=pytest.mark.nightly)]
)
def test_runs_trained_together_or_few_clients_at_a_time_are_the_same_runs(case: str) -> None:
    spec = specification(
        network(CASES[case]) | {"algorithm": {"kind": "fedavg"}}, execution={"engine": "vectorised"}
    )
    alone = [played(spec.model_dump(), "vectorised", seed) for seed in (0, 1)]
    together = [Simulation(spec, seed) for seed in (0, 1)]
    while not together[0].finished:
        advance_batch(together)
    for one, other in zip(alone, together, strict=True):
        assert_equal(one, other, atol=1e-12)
    divided = Simulation(spec, 0, memory_divisor=3)
    while not divided.finished:
        divided.advance()
    assert_equal(divided, alone[0], atol=1e-12)


def test_seeds_have_frozen_layers_of_their_own_also_when_trained_together() -> None:
    spec = specification(network(own("trained_head")) | FULL, execution={"engine": "vectorised"})
    together = [Simulation(spec, seed) for seed in (0, 1)]
    advance_batch(together)
    for seed, simulation in enumerate(together):
        alone = Simulation(spec, seed)
        alone.advance()
        assert_equal(simulation, alone, atol=1e-12)
        assert set(simulation.model()) == {"3.weight", "3.bias"}


def test_masks_and_statistics_do_not_depend_on_the_algorithm() -> None:
    """In its first round SCAFFOLD has no corrections yet: it is FedAvg."""
    models = []
    for algorithm in ("fedavg", "scaffold"):
        equal = {"kind": "uniform", "clients_per_round": 4, "weighting": "uniform"}
        document = network(CASES["average with dropout"], rounds=1, participation=equal)
        document |= {"algorithm": {"kind": algorithm}}
        models.append(played(document, "reference"))
    assert_equal(models[0], models[1], atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_one_value_per_channel_leaves_running_statistics_alone(engine: str) -> None:
    document = network(own("batch_normalised", batch_norm="average")) | FULL
    document = {name: value for name, value in document.items() if name != "systems"}
    ones = played(merged(document, {"local": {"batch_size": 1}, "rounds": 1}), engine).model()
    assert ones["5.num_batches_tracked"] == 0
    assert not ones["5.running_mean"].any()
    assert ones["1.num_batches_tracked"] == 3


def test_the_saved_model_has_the_reported_accuracy_in_plain_pytorch() -> None:
    spec = whole_batches(
        own("normalised_and_dropped", batch_norm="average"), 3, evaluation={"measures": ["test_accuracy"]}
    )
    simulation, module = Simulation(spec, 0), module_of(spec)
    report = [simulation.advance() for _ in range(2)][-1]
    module.load_state_dict(simulation.model())
    test = simulation.context.evaluated.data.dataset.test  # type: ignore[attr-defined]
    with torch.no_grad():
        correct = module.eval()(test.features).argmax(1) == test.labels
    assert report.test_accuracy == float(correct.double().mean())


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("Drawing", r"global generator in its forward pass \(randn_like at .*factories\.py:\d+\)"),
        ("Counting", r"changes its buffers as it trains \(batches\)"),
        ("dropped_weights", r"of shape \[10, 64\] for two samples and \[10, 64\] for three"),
    ],
)
def test_passes_that_could_not_be_repeated_are_refused_with_the_call(factory: str, told: str) -> None:
    with pytest.raises(SpecificationError, match=told):
        Simulation(specification(network(own(factory))), 0)


@pytest.mark.parametrize(("case", "engine"), in_turn("dropout", "average with dropout", "local"))
def test_a_network_trains_in_bfloat16_up_to_rounding(case: str, engine: str) -> None:
    single = {"execution": {"precision": "float32", "engine": engine}}
    document = merged(network(CASES[case], rounds=1), single) | {"algorithm": {"kind": "fedavg"}}
    expected = played(document, engine).model()
    found = played(merged(document, {"execution": {"autocast": "bf16"}}), engine).model()
    off = [
        float((found[name] - value).float().norm() / value.float().norm().clamp(min=1))
        for name, value in expected.items()
    ]
    assert 0 < max(off) < 8 * 2.0**-8


def test_parameters_that_would_be_sent_and_never_trained_are_refused() -> None:
    with pytest.raises(SpecificationError, match=r"does not depend on spare\.weight, spare\.bias, which"):
        Simulation(specification(network(own("Idle", parameters=658))), 0)
    head = own("Idle", train=["scores.*"])
    assert set(Simulation(specification(network(head)), 0).model()) == {"scores.1.weight", "scores.1.bias"}


def test_a_policy_is_asked_for_and_refused_where_it_means_nothing() -> None:
    with pytest.raises(SpecificationError, match=r"`average` .* `local` .* `frozen` .* or `group`"):
        Simulation(specification(network(own("batch_normalised"))), 0)
    with pytest.raises(SpecificationError, match="has no batch norm: omit"):
        Simulation(specification(network(own("forgetful", batch_norm="average", parameters=650))), 0)


SOLVER: Document = {
    "algorithm": {"kind": "fedprox", "mu": 0.1},
    "local": {"lr": None, "optimizer": {"kind": "adamw", "lr": 0.01}, "clip_norm": 0.5},
}


@pytest.mark.parametrize("case", ["average with dropout", "local", "frozen", "group"])
def test_networks_train_with_adam_and_clipping_alike_in_every_engine(case: str) -> None:
    """Under `local` the optimiser has a state for private parameters, which are clipped and scaled
    with the others.
    """
    smoothed = {"problem": {"loss": {"kind": "cross_entropy", "label_smoothing": 0.1}}}
    document = merged(network(CASES[case], **SOLVER), smoothed)
    expected = played(document, "reference")
    for engine in ENGINES[1:]:
        assert_equal(played(document, engine), expected, 1e-9)


@pytest.mark.parametrize(("case", "engine"), in_turn("dropout", "average", "local"))
def test_a_network_in_bfloat16_resumes_to_the_bit(case: str, engine: str) -> None:
    execution = {"engine": engine, "precision": "float32", "autocast": "bf16"}
    runs.resumes_at_every_round(lambda: specification(network(CASES[case], **SOLVER), execution=execution))


def test_layer_norm_in_bfloat16_is_left_to_the_engines_that_can_train_it() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4), nn.Linear(4, 10))

    def simulation(engine: str) -> Simulation:
        execution = {"precision": "float32", "autocast": "bf16", "engine": engine}
        spec = specification(DIGITS_CNN, execution=execution).model_dump()
        spec["problem"]["model"] = ModuleObject.of(module)
        return Simulation(ExperimentSpec.model_validate(spec), 0)

    chosen = simulation("auto")
    assert chosen.advance().local_steps > 0
    assert chosen.facts.choice.engine == "parallel"
    with pytest.raises(SpecificationError, match=r"on a CPU with `autocast`, not layer norm; use `auto`"):
        simulation("vectorised")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_module_of_this_process_trains_like_the_one_of_its_factory(policy: str) -> None:
    imported = whole_batches(own("batch_normalised", batch_norm=policy))
    module = batch_normalised((1, 8, 8), 10)
    averaged = Imported.model_validate(own("batch_normalised", batch_norm="average"))
    module.load_state_dict(build_module(averaged, (1, 8, 8), 10, seed=0).state_dict())
    model = ModuleObject.of(module, batch_norm=policy, l2=0.01)
    document = {**imported.model_dump(), "problem": {**imported.problem.model_dump(), "model": model}}
    runs_of = [Simulation(ExperimentSpec.model_validate(spec), 0) for spec in (imported, document)]
    reports = [simulation.advance() for simulation in runs_of]
    assert reports[0].bytes_up == reports[1].bytes_up
    assert_equal(runs_of[0], runs_of[1], atol=1e-14)


@pytest.mark.parametrize(
    "kind", ["fedper", "fedbabu", "local", "per_fedavg", pytest.param("ditto", marks=pytest.mark.nightly)]
)
def test_engines_agree_on_personal_training_with_dropout_and_batch_norm(kind: str) -> None:
    """Masks are those of the step, and the first gradient of a step alone moves running statistics."""
    document = network(own("normalised_and_dropped", batch_norm="average"), algorithm={"kind": kind})
    runs.engines_agree(partial(specification, document))


@pytest.mark.parametrize("kind", ["fedcm", "feddane"])
def test_engines_agree_on_rules_beside_own_batch_norm(kind: str) -> None:
    document = network(own("batch_normalised", batch_norm="local"), algorithm={"kind": kind})
    runs.engines_agree(partial(specification, document))


def test_training_before_evaluation_leaves_no_trace() -> None:
    document = network(own("normalised_and_dropped", batch_norm="average"))
    document = merged(document, {"problem": {"partition": {"hold_out": 0.2}}})
    measured = merged(
        document, {"evaluation": {"measures": ["personal_accuracy"], "fine_tuning": {"steps": 2}}}
    )
    plain, tuned = played(document, "vectorised"), played(measured, "vectorised")
    assert_equal(plain, tuned, atol=0.0)


@pytest.mark.parametrize("kind", ["fedper", "fedbabu", "local", "ditto", "per_fedavg"])
def test_local_batch_norm_is_refused_beside_personal_models(kind: str) -> None:
    with pytest.raises(SpecificationError, match="use another policy"):
        specification(network(own("batch_normalised", batch_norm="local"), algorithm={"kind": kind}))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_local_batch_norm_without_trained_parameters_keeps_statistics_alone(
    engine: str, affine: bool
) -> None:
    """All is as under `average`, whose statistics do not matter in training."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8, affine=affine)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, 10))
    made = {}
    for policy in ("local", "average"):
        model = {"kind": "object", "module": module, "batch_norm": policy, "train": "head"}
        run = Simulation(specification(network(model, execution={"engine": engine})), 0)
        for _ in range(2):
            assert run.advance().local_steps > 0
        made[policy] = [value for name, value in run.model().items() if name in ("3.weight", "3.bias")]
        Simulation(run.spec, 0).restore(run.checkpoint())
    for one, other in zip(*made.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
