"""From a specification and files to a problem, and through a run: data sets that must be
downloaded, on small stand-ins.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import SpecificationError
from tests.builders.specifications import Document, merged
from tests.data import leaf_files

SHAKESPEARE: Document = {
    "name": "the plays",
    "problem": {
        "dataset": {"kind": "shakespeare"},
        "partition": {"kind": "by_key", "clients": 2},
        "model": {"kind": "char_lstm", "embedding": 3, "hidden": 4},
    },
    "algorithm": {"kind": "scaffold"},
    "local": {"lr": 0.5, "steps": 2, "batch_size": 4},
    "rounds": 2,
    "execution": {"precision": "float64"},
}
SENT140: Document = merged(
    SHAKESPEARE, {"problem": {"dataset": {"kind": "sent140"}, "model": {"kind": "sent_lstm", "hidden": 4}}}
)
FEMNIST: Document = merged(
    SHAKESPEARE,
    {"problem": {"dataset": {"kind": "femnist"}, "partition": {"clients": 3}, "model": {"kind": "logistic"}}},
)
DOCUMENTS = {"shakespeare": SHAKESPEARE, "sent140": SENT140, "femnist": FEMNIST}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    leaf_files.write_femnist(tmp_path)
    leaf_files.write_shakespeare(tmp_path)
    leaf_files.write_sent140(tmp_path)
    return tmp_path


def simulation(name: str, files: Path, **changes: Any) -> Simulation:
    return Simulation(ExperimentSpec.model_validate(merged(DOCUMENTS[name], changes)), seed=0, data_dir=files)


def finished(simulation: Simulation) -> torch.Tensor:
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_engines_agree_on_each_and_go_on_from_a_checkpoint(name: str, files: Path) -> None:
    def run(engine: str) -> Simulation:
        return simulation(name, files, execution={"engine": engine}, evaluation={"measures": []})

    first, second = run("reference"), run("reference")
    first.advance()
    second.restore(first.checkpoint())
    reference = finished(first)
    assert torch.equal(finished(second), reference)
    torch.testing.assert_close(finished(run("vectorised")), reference, rtol=0, atol=1e-9)


def test_the_data_are_called_what_they_are(files: Path) -> None:
    assert {simulation(name, files).facts.data_source for name in DOCUMENTS} == {
        "Shakespeare (LEAF); test windows overlap training windows",
        "Sent140 (LEAF)",
        "FEMNIST (LEAF)",
    }


def test_by_key_tests_on_what_its_clients_made(files: Path) -> None:
    """Writer 1 alone has two or more letters of a to j in training and one in testing.

    Writer 3 does not train at all.
    """
    problem = {"partition": {"clients": 1, "min_samples": 4}}
    data = simulation("femnist", files, problem=problem).context.problem.data  # type: ignore[attr-defined]
    assert data.sizes.tolist() == [4]
    assert data.dataset.test.labels.tolist() == [45, 38]


def test_other_partitions_divide_the_same_data(files: Path) -> None:
    shared = simulation(
        "femnist", files, problem={"partition": {"kind": "iid", "clients": 4}}
    ).context.problem
    assert shared.sizes.tolist() == [2] * 4


def test_more_clients_than_the_files_hold_are_refused(files: Path) -> None:
    with pytest.raises(SpecificationError, match="3 have at least 1 training samples") as refusal:
        simulation("femnist", files, problem={"partition": {"clients": 4}})
    assert refusal.value.pointer == "/problem/partition/clients"


def test_by_key_needs_data_that_say_whose_they_are() -> None:
    with pytest.raises(
        SpecificationError, match="by_key requires a data set that does, like femnist"
    ) as refusal:
        ExperimentSpec.model_validate(merged(FEMNIST, {"problem": {"dataset": {"kind": "mnist"}}}))
    assert refusal.value.pointer == "/problem/partition"


def test_a_share_of_every_clients_samples_may_be_tested_on(files: Path) -> None:
    """Twelve images of all writers on two clients: int(0.75 * 6) of each train."""
    problem = {"partition": {"kind": "iid", "clients": 2, "hold_out": 0.25}}
    shared = simulation("femnist", files, problem=problem, execution={"engine": "reference"})
    assert shared.context.problem.sizes.tolist() == [4, 4]
    assert len(shared.context.problem.data.dataset.test) == 4  # type: ignore[attr-defined]
    assert shared.advance().test_accuracy is not None
