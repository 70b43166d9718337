"""`fedq dataset`: data sets of one's own."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedq.client import Client
from tests.api.datasets.test_routes import on
from tests.fedq.cli.conftest import Fedq
from tests.platform.uploads.files import arrays, npz, parquet


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A data set that can be uploaded."""
    path = tmp_path / "hospitals.parquet"
    path.write_bytes(parquet(arrays()))
    return path


@pytest.mark.slow
def test_a_data_set_is_added_listed_shown_and_deleted(fedq: Fedq, client: Client, file: Path) -> None:
    added = fedq("dataset", "add", str(file))
    id = added.out.strip()
    assert (added.code, client.dataset(id).name) == (0, "hospitals.parquet")
    assert fedq("dataset", "add", str(file), "--name", "again").out == added.out
    (line,) = [line for line in fedq("dataset", "list").out.splitlines() if id in line]
    assert line.split()[:8] == [id, "hospitals.parquet", "local", "4", "3", "7", "48", "12"]
    shown = fedq("dataset", "show", id).out
    assert "48 training + 12 test" in shown
    assert "4: x0, x1, x2, x3" in shown
    assert "label, 3 classes: 0 (16 + 4), 1 (16 + 4), 2 (16 + 4)" in shown
    assert "7 clients with 6 to 8 training samples, mean 6.9, median 7" in shown
    assert f"problem.dataset: {{kind: uploaded, id: {id}}}" in shown
    assert fedq("dataset", "delete", id) == (0, "", "")
    assert fedq("dataset", "show", id).code == 4


def test_data_in_one_piece_and_real_labels_are_told(fedq: Fedq, tmp_path: Path) -> None:
    file = tmp_path / "prices.npz"
    file.write_bytes(npz(arrays(client=None, label=np.linspace(0, 1, 60), features=np.zeros((60, 2, 2)))))
    id = fedq("dataset", "add", str(file)).out.strip()
    shown = fedq("dataset", "show", id).out
    assert "shape 2 x 2" in shown
    assert "label, real numbers, 0 to 1" in shown
    assert "not divided into clients" in shown


def test_answers_come_as_json(fedq: Fedq, file: Path) -> None:
    added = json.loads(fedq("dataset", "add", str(file), "--json").out)
    assert json.loads(fedq("dataset", "show", added["id"], "--json").out) == added
    assert json.loads(fedq("dataset", "list", "--limit", "1", "--json").out) == [added]


@pytest.mark.slow
def test_faults_of_a_data_set_are_told_by_exit_code_and_place(
    fedq: Fedq, client: Client, file: Path, tmp_path: Path
) -> None:
    assert fedq("dataset", "add", str(tmp_path / "nowhere.npz")).code == 2
    file.write_bytes(npz(arrays(label=np.ones(60, int))))
    refused = fedq("dataset", "add", str(file))
    assert (refused.code, "/label: contains 1 classes numbered 1 up to 1" in refused.err) == (2, True)
    id = client.upload(arrays(), "mine").id
    client.submit(on(id))
    assert fedq("dataset", "delete", id).code == 4
