"""`fedq data`: data sets on this machine, without a service."""

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

Captured = pytest.CaptureFixture[str]


def fedq(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["data", *arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_every_data_set_is_listed_with_how_to_get_it(capsys: Captured) -> None:
    assert fedq("--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in listed] == [kind_of(member) for member in DATASETS]
    assert {item["kind"]: item["obtain"] for item in listed}["mnist"] == "python -m fedq.download mnist"
    assert fedq() == 0
    assert "tiny_imagenet" in capsys.readouterr().out


def test_a_file_is_kept_and_its_block_printed(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "own.csv"
    path.write_text("width,height,kind\n1,2,cat\n3,4,dog\n5,6,cat\n")
    assert fedq("keep", str(path), "--column", "label=kind", "--to", str(tmp_path)) == 0
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
    assert fedq("keep", str(tmp_path / "own.parquet")) == 2
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
    assert fedq("keep", str(path), *options, "--to", str(tmp_path)) == 2
    assert told in capsys.readouterr().err
