"""A run has the same bits in the worker's own process and in the computing process of a bundle."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from fedcore import ExperimentSpec
from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError
from fedcore.platform.store.leases import Claim
from fedcore.settings import Settings
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.builders.claims import claimant
from tests.builders.specifications import SYNTHETIC, Document, merged, suited
from tests.workers.confined.conftest import EACH_CONFINEMENT, packed
from workers.confined.sandbox import Sandbox
from workers.confined.simulation import ConfinedSimulation

pytestmark = pytest.mark.slow

SCAFFOLD = merged(
    SYNTHETIC,
    {
        "rounds": 6,
        "algorithm": {"kind": "scaffold"},
        "local": {"epochs": None, "steps": 2},
        "execution": {"engine": "vectorised"},
    },
)
DOCUMENTS = {
    "scaffold": SCAFFOLD,
    "compressed": merged(
        SCAFFOLD,
        {"algorithm": {"kind": "fedavg"}, "compression": {"uplink": {"kind": "top_k", "ratio": 0.1}}},
    ),
    "objective": merged(SCAFFOLD, suited("moon")),
    "stopped early": merged(
        SCAFFOLD,
        {
            "rounds": 50,
            "algorithm": {"kind": "fedavg"},
            "early_stopping": {"metric": "train_loss", "target": 2.2},
        },
    ),
}


@pytest.fixture(scope="module", params=EACH_CONFINEMENT)
def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    archive = packed(tmp_path_factory.mktemp("lab") / "mylab")
    empty = tmp_path_factory.mktemp("data")
    settings = Settings(_env_file=None, code_confinement=request.param, data_dir=empty)
    with Sandbox(archive, settings) as opened:
        yield opened


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def confined(sandbox: Sandbox, document: Document) -> ConfinedSimulation:
    held = Claim(
        run_id="run_1",
        experiment_id="exp_1",
        worker="worker-1",
        claimant=claimant(),
        fence=1,
        spec=document,
        arm=0,
        seed=1,
        done=0,
        rounds=document["rounds"],
        checkpoint=None,
        until=document["rounds"],
        model=None,
        provenance={},
    )
    return ConfinedSimulation(sandbox, held, "cpu", 60.0, {}, lambda: False)


def untimed(report: RoundReport) -> RoundReport:
    return replace(report, seconds=0.0)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_reports_checkpoints_and_models_have_the_same_bits_and_resume_at_every_round(
    sandbox: Sandbox, name: str
) -> None:
    document = DOCUMENTS[name]
    alone = Simulation(ExperimentSpec.model_validate(document), seed=1)
    other = confined(sandbox, document)
    while not alone.finished:
        assert not other.finished
        assert untimed(other.advance()) == untimed(alone.advance())
        state = other.checkpoint()
        assert state == alone.checkpoint()
        other.close()
        other = confined(sandbox, document)
        other.restore(state)
    assert other.facts == replace(alone.facts, chance_accuracy=None)
    assert save(other.model()) == save(alone.model())
    assert save(other.best_model()) == save(dict(alone.best_model()))
    other.close()


def test_a_run_goes_on_in_either_process_after_the_other(sandbox: Sandbox) -> None:
    spec = ExperimentSpec.model_validate(SCAFFOLD)
    alone, mixed = Simulation(spec, seed=1), Simulation(spec, seed=1)
    for _ in range(4):
        alone.advance()
    mixed.advance()
    other = confined(sandbox, SCAFFOLD)
    other.restore(mixed.checkpoint())
    other.advance()
    mixed.restore(other.checkpoint())
    other.close()
    mixed.advance()
    mixed.advance()
    assert mixed.checkpoint() == alone.checkpoint()


def test_a_component_of_the_bundle_is_computed(sandbox: Sandbox) -> None:
    built_in = confined(sandbox, merged(SCAFFOLD, {"algorithm": {"kind": "fedavg"}}))
    expected = [untimed(built_in.advance()) for _ in range(3)]
    built_in.close()
    mine = confined(sandbox, {**SCAFFOLD, "algorithm": {"kind": "mine"}})
    assert [untimed(mine.advance()) for _ in range(3)] == expected
    mine.close()


def test_errors_keep_their_meaning(sandbox: Sandbox) -> None:
    simulation = confined(sandbox, SCAFFOLD)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        simulation.restore(b"no checkpoint")
    simulation.advance()
    simulation.close()
    mnist = {
        "problem": {
            "dataset": {"kind": "mnist"},
            "partition": {"kind": "iid", "clients": 10},
            "model": {"kind": "logistic"},
        }
    }
    with pytest.raises(DataUnavailableError):
        confined(sandbox, {**SCAFFOLD, **mnist})
    model = {"kind": "import", "path": "ourlab.networks:small", "parameters": 610}
    wrong = {**SCAFFOLD, "problem": {**SCAFFOLD["problem"], "model": model}}
    with pytest.raises(SpecificationError) as refused:
        confined(sandbox, wrong)
    with pytest.raises(SpecificationError) as expected:
        Simulation(ExperimentSpec.model_validate(wrong), seed=1)
    assert (refused.value.pointer, refused.value.detail) == (expected.value.pointer, expected.value.detail)


def test_a_session_ends_with_nothing_left(sandbox: Sandbox) -> None:
    simulation = confined(sandbox, SCAFFOLD)
    assert len(sandbox.processes()) == 1
    simulation.close()
    simulation.close()
    assert sandbox.processes() == []
    assert sandbox.alive
