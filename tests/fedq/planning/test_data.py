"""The data sets that a plan needs."""

from pathlib import Path

from fedcore.spec import ExperimentSpec
from fedq.planning.data import data_warnings, datasets_of, roots_in


def test_lacking_data_sets_and_lossy_copies_are_told(tmp_path: Path) -> None:
    spec = ExperimentSpec.model_validate(
        {
            "name": "images",
            "problem": {
                "dataset": {"kind": "cifar10"},
                "partition": {"kind": "iid", "clients": 10},
                "model": {"kind": "logistic"},
            },
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 0.1, "epochs": 1},
            "rounds": 2,
        }
    )
    needed = datasets_of(spec)
    (lacking,) = data_warnings(needed, [roots_in(tmp_path)], "no worker has")
    assert lacking.startswith(
        "no worker has the data set 'cifar10': put cifar-10-batches-py/ in FEDQ_DATA_DIR"
    )
    (tmp_path / "cifar10_jpeg").mkdir()
    (copy,) = data_warnings(needed, [[], roots_in(tmp_path)], "no worker has")
    assert copy.startswith("runs will use CIFAR-10 (JPEG copy), a lossy copy")
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert data_warnings(needed, [[], roots_in(tmp_path)], "no worker has") == []
