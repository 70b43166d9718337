"""On a real GPU; skipped where there is none. `make gpu` runs it, and measures."""

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.data.federated import Scale
from fedcore.engine.engines import EngineName
from fedcore.errors import SpecificationError
from fedcore.simulation.out_of_memory import MEMORY_DIVISOR, is_out_of_memory, release_memory
from tests.algorithms import test_catalogue
from tests.builders import stored_values
from tests.builders.specifications import ALGORITHMS, SYNTHETIC, Document, merged, specification, suited
from tests.data.learnable import FEW, WRITERS
from tests.engine import test_round
from tests.engine.test_shards import Elsewhere
from tests.models.test_models_by_data import CASES, FACTORIES, FAMILIES, document, family_model
from workers.telemetry import read_gpu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

ON_GPUS: tuple[EngineName, ...] = ("reference", "parallel", "vectorised")
MOMENTUM: Document = {"local": {"optimizer": {"momentum": 0.9, "prox_mu": 0.1, "weight_decay": 1e-3}}}
CNN: Document = {
    "name": "a small CNN on digits",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"kind": "cnn", "channels": [4, 4], "hidden": [8]},
    },
    "algorithm": {"kind": "scaffold"},
    "local": {"lr": 0.05, "steps": 4, "batch_size": 16},
    "rounds": 3,
    "execution": {"precision": "float64"},
}


def simulated(spec: ExperimentSpec, device: str, seed: int = 3, **options: Any) -> Simulation:
    simulation = Simulation(spec, seed, device=device, models_allowed=FACTORIES, **options)
    while not simulation.finished:
        simulation.advance()
    return simulation


def model(simulation: Simulation) -> Tensor:
    return torch.cat([parameter.flatten().cpu() for parameter in simulation.model().values()])


def engine(name: str, **execution: Any) -> Document:
    return {"execution": {"engine": name, **execution}}


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("name", ON_GPUS)
def test_every_algorithm_is_the_cpus_loop_by_every_engine(kind: str, name: EngineName) -> None:
    changes = merged(MOMENTUM, suited(kind))
    there = model(simulated(specification(SYNTHETIC, **merged(changes, engine(name))), "cuda"))
    here = model(simulated(specification(SYNTHETIC, **merged(changes, engine("reference"))), "cpu"))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_GPUS)
def test_convolutional_network_is_the_cpus_loop_by_every_engine(name: EngineName) -> None:
    there, here = (
        model(simulated(specification(CNN, **engine(by)), device))
        for by, device in ((name, "cuda"), ("reference", "cpu"))
    )
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_GPUS)
def test_single_precision_is_not_tensorfloat(name: EngineName) -> None:
    single = merged(CNN, engine(name, precision="float32"))
    there, here = (model(simulated(specification(single), device)) for device in ("cuda", "cpu"))
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(name: EngineName) -> None:
    spec = specification(CNN, **engine(name, precision="float32"))
    first = Simulation(spec, 0, device="cuda")
    first.advance()
    second = Simulation(spec, 0, device="cuda")
    second.restore(first.checkpoint())
    for simulation in (first, second):
        while not simulation.finished:
            simulation.advance()
    assert torch.equal(model(first), model(second))


def test_machine_code_is_made_for_cpus_and_auto_does_without() -> None:
    with pytest.raises(SpecificationError, match="`compiled` is made for"):
        Simulation(specification(SYNTHETIC, **engine("compiled")), 3, device="cuda")
    assert simulated(specification(SYNTHETIC, **engine("auto")), "cuda").facts.choice.engine in ON_GPUS


@pytest.mark.parametrize("name", ON_GPUS)
def test_clients_that_start_from_models_of_their_own_are_the_cpus_loop(name: EngineName) -> None:
    """Those of an asynchronous run, which started at different steps of the server."""
    spec: Document = {
        "participation": {"kind": "full"},
        "systems": {
            "stragglers": None,
            "devices": {"steps_per_second": {"kind": "log_normal", "median": 5.0, "sigma": 1.0}},
        },
        "asynchrony": {"kind": "fedbuff", "concurrency": 5, "buffer": 3},
        "rounds": 6,
    }
    changes = merged(MOMENTUM, spec)
    there = model(simulated(specification(SYNTHETIC, **merged(changes, engine(name))), "cuda"))
    here = model(simulated(specification(SYNTHETIC, **merged(changes, engine("reference"))), "cpu"))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


STORED = {
    **{name: partial(test_catalogue.variant, name, rounds=5) for name in test_catalogue.STORED},
    **{name: partial(test_round.case, name) for name in test_round.STORED},
}


@pytest.mark.parametrize(("case", "name"), [*zip(STORED, cycle(ON_GPUS), strict=False)])
def test_every_algorithm_under_every_variant_has_the_values_that_a_cpu_stored(
    case: str, name: EngineName
) -> None:
    there = simulated(STORED[case](**engine(name)), "cuda", seed=1)
    assert not stored_values.differences(
        stored_values.values_of(there), stored_values.read()[case], within=1e-9
    )


def test_bytes_stand_for_the_same_numbers_as_on_a_cpu() -> None:
    scale, raw = (
        Scale(255.0, torch.tensor(0.1307), torch.tensor(0.3081)),
        torch.arange(256, dtype=torch.uint8),
    )
    there = scale.to("cuda", torch.float32).numbers(raw.cuda())
    assert torch.equal(there.cpu(), scale.numbers(raw))


def families() -> Iterator[tuple[str, str, str | None, EngineName]]:
    """Each family of models under each policy for batch norm, on one family of data, by every engine."""
    seen = set()
    for family, data, policy in CASES:
        if (family, policy) not in seen:
            seen.add((family, policy))
            recurrent = family.endswith("lstm")
            yield from (
                (family, data, policy, name) for name in ON_GPUS if not (recurrent and name[0] == "v")
            )


@pytest.mark.parametrize(("family", "data", "policy", "name"), [*families()])
def test_every_family_of_networks_is_the_cpus_loop(
    family: str,
    data: str,
    policy: Any,
    name: EngineName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = WRITERS[data](tmp_path, monkeypatch, FEW)
    given = document(dataset, family_model(dataset, family, policy))
    there, here = (
        model(simulated(ExperimentSpec.model_validate(merged(given, engine(by))), device, data_dir=tmp_path))
        for by, device in ((name, "cuda"), ("reference", "cpu"))
    )
    # Batch norm of few values amplifies rounding.
    torch.testing.assert_close(there, here, rtol=0, atol=1e-8 if policy is None else 1e-5)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.endswith("lstm")])
def test_samples_of_sequences_are_clipped_one_by_one(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = next(data for model, data, _ in CASES if model == family)
    dataset = WRITERS[data](tmp_path, monkeypatch, FEW)
    privacy = {"kind": "example_level", "clip_norm": 0.01, "noise_multiplier": 1.0}
    given = document(
        dataset, family_model(dataset, family, None), privacy=privacy, local={"steps": None, "epochs": 1}
    )
    there, here = (
        model(simulated(ExperimentSpec.model_validate(given), device, data_dir=tmp_path))
        for device in ("cuda", "cpu")
    )
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


def test_convolutions_and_dropout_are_stacked_and_recurrent_layers_left_to_their_own_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for family, chosen in (("dropout_cnn", "vectorised"), ("char_lstm", "parallel")):
        data = next(data for model, data, _ in CASES if model == family)
        dataset = WRITERS[data](tmp_path, monkeypatch, FEW)
        spec = ExperimentSpec.model_validate(document(dataset, family_model(dataset, family, None)))
        assert Simulation(spec, 0, device="cuda", data_dir=tmp_path).facts.choice.engine == chosen


def test_shards_trained_by_two_processes_of_a_gpu_have_the_same_bits() -> None:
    spec = specification(CNN, execution={"shards": 2})
    here, there = simulated(spec, "cuda"), Simulation(spec, 3, device="cuda")
    there.share(Elsewhere(there, spec, "cuda"))
    while not there.finished:
        there.advance()
    assert torch.equal(model(there), model(here))


def test_a_round_that_found_no_memory_is_played_with_fewer_clients_at_a_time() -> None:
    big = merged(
        CNN,
        {
            "problem": {"model": {"channels": [64, 64]}, "partition": {"clients": 30}},
            "algorithm": {"kind": "fedavg"},
            "local": {"batch_size": 50},
            "rounds": 1,
            **engine("vectorised"),
        },
    )
    torch.cuda.reset_peak_memory_stats()
    expected = model(simulated(specification(big), "cuda"))
    peak = torch.cuda.max_memory_allocated()
    release_memory()
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(RuntimeError) as raised:
            simulated(specification(big), "cuda")
        assert is_out_of_memory(raised.value)
        del raised
        release_memory()
        found = model(simulated(specification(big), "cuda", memory_divisor=MEMORY_DIVISOR))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_measures_of_predictions_are_those_of_the_cpu() -> None:
    measures = ["confusion_matrix", "macro_f1", "auroc", "expected_calibration_error"]
    spec = specification(CNN, evaluation={"measures": measures}, algorithm={"kind": "fedavg"})
    there, here = (Simulation(spec, 0, device=device).advance().extra for device in ("cuda", "cpu"))
    assert there["confusion_matrix"] == here["confusion_matrix"]
    for measure in measures[1:]:
        assert there[measure] == pytest.approx(here[measure], rel=1e-6)


def test_use_of_the_gpu_is_read() -> None:
    held = torch.ones(1 << 20, device="cuda")
    use = read_gpu("cuda")
    assert use.memory_bytes >= held.nbytes
    assert use.utilisation is None or 0 <= use.utilisation <= 1
