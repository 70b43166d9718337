"""`fedq data`: data sets on this machine, and uploaded ones."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedcore.block import kind_of
from fedcore.data.datasets import DATASETS
from fedcore.data.uploaded import Local
from fedcore.platform.uploads import local
from fedq.cli import main
from fedq.client import Client
from tests.api.datasets.test_routes import on
from tests.fedq.cli.conftest import Fedq
from tests.platform.uploads.files import arrays, npz, parquet

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A data set that can be uploaded."""
    path = tmp_path / "hospitals.parquet"
    path.write_bytes(parquet(arrays()))
    return path


@pytest.mark.slow
def test_a_data_set_is_added_listed_shown_and_deleted(fedq: Fedq, client: Client, file: Path) -> None:
    added = fedq("data", "add", str(file))
    id = added.out.strip()
    assert (added.code, client.dataset(id).name) == (0, "hospitals.parquet")
    assert fedq("data", "add", str(file), "--name", "again").out == added.out
    (line,) = [line for line in fedq("data", "list").out.splitlines() if id in line]
    assert line.split()[:8] == [id, "hospitals.parquet", "local", "4", "3", "7", "48", "12"]
    shown = fedq("data", "show", id).out
    assert "48 training + 12 test" in shown
    assert "4: x0, x1, x2, x3" in shown
    assert "label, 3 classes: 0 (16 + 4), 1 (16 + 4), 2 (16 + 4)" in shown
    assert "7 clients with 6 to 8 training samples, mean 6.9, median 7" in shown
    assert f"problem.dataset: {{kind: uploaded, id: {id}}}" in shown
    assert fedq("data", "delete", id) == (0, "", "")
    assert fedq("data", "show", id).code == 4


def test_data_in_one_piece_and_real_labels_are_told(fedq: Fedq, tmp_path: Path) -> None:
    file = tmp_path / "prices.npz"
    file.write_bytes(npz(arrays(client=None, label=np.linspace(0, 1, 60), features=np.zeros((60, 2, 2)))))
    id = fedq("data", "add", str(file)).out.strip()
    shown = fedq("data", "show", id).out
    assert "shape 2 x 2" in shown
    assert "label, real numbers, 0 to 1" in shown
    assert "not divided into clients" in shown


def test_answers_come_as_json(fedq: Fedq, file: Path) -> None:
    added = json.loads(fedq("data", "add", str(file), "--json").out)
    assert json.loads(fedq("data", "show", added["id"], "--json").out) == added
    assert json.loads(fedq("data", "list", "--limit", "1", "--json").out) == [added]


@pytest.mark.slow
def test_faults_of_a_data_set_are_told_by_exit_code_and_place(
    fedq: Fedq, client: Client, file: Path, tmp_path: Path
) -> None:
    assert fedq("data", "add", str(tmp_path / "nowhere.npz")).code == 2
    file.write_bytes(npz(arrays(label=np.ones(60, int))))
    refused = fedq("data", "add", str(file))
    assert (refused.code, "/label: contains 1 classes numbered 1 up to 1" in refused.err) == (2, True)
    id = client.upload(arrays(), "mine").id
    client.submit(on(id))
    assert fedq("data", "delete", id).code == 4


def call(*arguments: str) -> int:
    """Carry out `fedq data`, without a service."""
    with pytest.raises(SystemExit) as ended:
        main(["data", *arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_every_data_set_is_listed_with_how_to_get_it(capsys: Captured) -> None:
    assert call("--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in listed] == [kind_of(member) for member in DATASETS]
    assert {item["kind"]: item["obtain"] for item in listed}["mnist"] == "python -m fedq.download mnist"
    assert call() == 0
    assert "tiny_imagenet" in capsys.readouterr().out


def test_a_file_is_kept_and_its_block_printed(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "own.csv"
    path.write_text("width,height,kind\n1,2,cat\n3,4,dog\n5,6,cat\n")
    assert call("keep", str(path), "--column", "label=kind", "--to", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    block = Local.model_validate(json.loads(out))
    assert (block.known.features, block.known.classes, block.known.train_samples) == ((2,), 2, 3)
    kept = tmp_path / "uploaded" / f"{block.known.digest}.npz"
    assert str(kept) in "".join(err.split())
    assert np.load(kept)["features"].tolist() == [[1, 2], [3, 4], [5, 6]]
    table = [line.strip() for line in err.splitlines()][-6:]
    assert [line for line in table if line] == [
        "samples       3 training + 0 test",
        "features      2: width, height",
        "label         kind, 2 classes: cat (2 + 0), dog (1 + 0)",
        "clients       not divided into clients: give a `partition`",
        "test samples  none: there are no test losses and accuracies",
    ]


def _ends_its_process(*_: object, **__: object) -> None:
    os.abort()


def test_a_file_at_which_a_reader_ends_its_process_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "keep", _ends_its_process)
    assert call("keep", str(tmp_path / "own.parquet")) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"fedq: file: {tmp_path / 'own.parquet'} cannot be read: it is damaged")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--column", "label"], "NAME=COLUMN"),
        (["--column", "label=nothing"], "there is no column"),
        (["--image", "3x32"], "CxHxW"),
        (["--image", "2x32x32"], "1 or 3"),
    ],
)
def test_faults_of_local_data_are_told_with_exit_code_2(
    options: list[str], told: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("width,label\n1,0\n2,1\n")
    assert call("keep", str(path), *options, "--to", str(tmp_path)) == 2
    assert told in capsys.readouterr().err
