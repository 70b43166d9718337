"""`fedq.run`: an experiment without a service, under the settings of this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fedcore
import fedq
from fedcore.errors import DataUnavailableError, SpecificationError
from fedcore.settings import settings
from tests.builders.specifications import SYNTHETIC, merged, specification

MODEL = {"kind": "import", "path": "tests.models.factories:plain", "parameters": 610}
IMPORTED = specification(
    merged(SYNTHETIC, {"rounds": 1}) | {"problem": {**SYNTHETIC["problem"], "model": MODEL}}
)
MNIST = specification(
    {
        "name": "mnist",
        "problem": {
            "dataset": {"kind": "mnist"},
            "partition": {"kind": "iid", "clients": 10},
            "model": {"kind": "logistic"},
        },
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.1, "epochs": 1},
        "rounds": 1,
    }
)


@pytest.fixture(autouse=True)
def _read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEDQ_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("FEDQ_MODELS_ALLOWED", "tests.models.factories:*")
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_data_come_from_the_folder_of_the_settings_which_the_library_does_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=str(tmp_path)):
        next(fedq.run(MNIST))
    with pytest.raises(DataUnavailableError, match="elsewhere"):
        next(fedcore.run(MNIST, data_dir=tmp_path / "elsewhere"))


def test_models_are_allowed_by_the_settings_which_the_library_does_not_read() -> None:
    assert [report.round for report in fedq.run(IMPORTED)] == [1]
    with pytest.raises(SpecificationError, match="FEDQ_MODELS_ALLOWED"):
        next(fedcore.run(IMPORTED))
