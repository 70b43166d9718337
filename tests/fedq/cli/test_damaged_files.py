"""Files of users, damaged in every way, at every command that reads them: each ends with an exit code
that is documented, and says in a line which file it is.
"""

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedcore import Simulation
from fedcore.platform.artifacts import model_files
from fedcore.platform.status import Status
from fedcore.platform.store import upgrade
from fedcore.platform.uploads import local
from fedcore.settings import settings
from fedq.cli import data, main
from fedq.cli.terminal import MEANINGS
from fedq.client import transport
from fedq.local import experiment
from fedq.local.folder import MODEL, ExperimentFolder, archive
from tests.builders.specifications import QUADRATIC, specification

SPEC = specification(QUADRATIC, rounds=3)
GARBAGE = (
    b"",
    b"\0" * 100,
    b"\xff\xfe\xfd" * 50,
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"[" * 20_000,
    b'{"a":' * 20_000,
)
WRONG_VALUES: tuple[Any, ...] = (None, -1, 1e308, "x", [], {})
FLIPS = 6

Commands = Callable[[Path], list[list[object]]]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, no processes, and files in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDQ_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FEDQ_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(transport, "FIRST_PATIENCE_S", 0.0)
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", _NoProcesses)
    # A process for each of hundreds of files would take minutes: see test_data.py.
    monkeypatch.setattr(
        data,
        "_kept",
        lambda source, to, columns, image: local.keep(source, to, columns=columns, image=image),
    )
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.slow
def test_folders_of_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(SPEC.model_dump_json())

    def commands(folder: Path) -> list[list[object]]:
        model = ["export", folder / "runs" / "0-0", "--to", "onnx", "-o", tmp_path / "model.onnx"]
        return [["import", folder], ["run", spec, "-o", folder], model]

    _assert_told(_finished(tmp_path / "good"), commands, capsys)


def test_results_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = archive(_finished(tmp_path / "good"))
    file = tmp_path / "results.fedq.json.gz"
    file.write_bytes(gzip.compress(content))
    _assert_told(file, lambda file: [["import", file]], capsys)


def test_specifications(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.json"
    file.write_text(SPEC.model_dump_json(exclude_defaults=True))

    def commands(file: Path) -> list[list[object]]:
        return [
            ["plan", file],
            ["run", file, "-o", tmp_path / "out"],
            ["submit", file],
            ["audit-privacy", file],
        ]

    _assert_told(file, commands, capsys, most_lines=30)  # a line for each flaw


@pytest.mark.parametrize("name", ["data.npz", "data.csv", "data.jsonl", "data.parquet", "images"])
def test_data_sets(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / name
    draw = np.random.default_rng(0)
    features, label = draw.normal(size=(8, 3)), np.arange(8) % 2
    match name:
        case "data.npz":
            np.savez(source, features=features, label=label)
        case "data.csv":
            source.write_text("a,b,label\n" + "".join(f"{row},{row * 2},{row % 2}\n" for row in range(8)))
        case "data.jsonl":
            rows = [{"features": [row, 2], "label": row % 2} for row in range(8)]
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "data.parquet":
            pq.write_table(pa.table({"features": features.tolist(), "label": label}), source)
        case _:
            for place, suffix in enumerate(("png", "jpg", "bmp", "webp", "ppm")):
                (source / "ab"[place % 2]).mkdir(parents=True, exist_ok=True)
                pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(source / "ab"[place % 2] / f"{place}.{suffix}")
    _assert_told(
        source, lambda source: [["data", "keep", source, "--to", tmp_path / "kept"]], capsys, most_lines=30
    )


def test_backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    upgrade(f"sqlite:///{backup / 'fedq.db'}")

    def commands(folder: Path) -> list[list[object]]:
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        monkeypatch.setenv("FEDQ_HOME", str(home))
        settings.cache_clear()
        return [["restore", folder]]

    _assert_told(backup, commands, capsys)


def test_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDQ_URL")
    file = tmp_path / "good.env"
    file.write_text("FEDQ_URL=http://127.0.0.1:9\nFEDQ_SLICE_SECONDS=3\n")

    def commands(damaged: Path) -> list[list[object]]:
        (tmp_path / ".env").unlink(missing_ok=True)
        if damaged.is_file():
            shutil.copy(damaged, tmp_path / ".env")
        settings.cache_clear()
        return [["list"]]

    _assert_told(file, commands, capsys, most_lines=30)


class _NoProcesses:
    """Begins no run: what has ended is read, and what has not is left."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, *_: object) -> None:
        raise SystemExit(0)

    def shutdown(self, **_: object) -> None:
        pass


def _finished(path: Path) -> Path:
    """The folder of an experiment that `fedq run` has computed."""
    folder = ExperimentFolder.open(path, SPEC, {})
    for key in folder.run_keys():
        files, simulation = folder.run(key), Simulation(SPEC, key.seed)
        run = files.start({})
        files.write(run)
        while not simulation.finished:
            files.commit([simulation.advance()], simulation.checkpoint())
        models, digests = model_files(simulation, MODEL, run.id, folder.experiment["id"])
        ending = {"status": Status.SUCCEEDED, "finished_at": datetime.now(UTC), "provenance": digests}
        files.finish(run.model_copy(update=ending), models)
    return path


def _assert_told(
    good: Path, commands: Commands, capsys: pytest.CaptureFixture[str], *, most_lines: int = 2
) -> None:
    """Damage each file of `good`, a file or a folder, in every way, and call the commands."""
    told = 0
    for work, damage in _damaged(good):
        for command in commands(work):
            code = _call(command, damage)
            error = capsys.readouterr().err
            assert code in MEANINGS, (command, damage)
            assert "Traceback" not in error, (command, damage)
            if code in (2, 4) and good.is_dir() and command[0] != "export":
                assert work.name in error, (command, damage, error)
            if code in (2, 4):
                assert len(error.splitlines()) <= most_lines, (command, damage, error)
                told += 1
    assert told > 5, "the commands take whatever they are given"


def _call(command: list[object], damage: str) -> object:
    try:
        main([str(argument) for argument in command])
    except SystemExit as ended:
        return ended.code or 0
    except BaseException as error:
        raise AssertionError(f"{command} of a file that is {damage}") from error
    raise AssertionError(f"{command} has no exit code")


def _damaged(good: Path) -> Iterator[tuple[Path, str]]:
    """Copies of `good`, each with one damage."""
    work = good.with_name(f"work{''.join(good.suffixes)}")
    for file in [good] if good.is_file() else sorted(path for path in good.rglob("*") if path.is_file()):
        if file.name == "lock":
            continue
        target = work / file.relative_to(good) if good.is_dir() else work
        for name, content in _contents(file):
            _copy(good, work)
            target.write_bytes(content)
            yield work, f"{file.name} {name}"
        for name in ("gone", "a folder", "a link to itself"):
            _copy(good, work)
            target.unlink()
            if name == "a folder":
                target.mkdir()
            elif name == "a link to itself":
                target.symlink_to(target)
            yield work, f"{file.name} {name}"


def _contents(file: Path) -> Iterator[tuple[str, bytes]]:
    content, draw = file.read_bytes(), random.Random(0)
    for garbage in GARBAGE:
        yield f"{garbage[:10]!r}", garbage
    for length in (1, len(content) // 2, len(content) - 1):
        yield f"cut after {length} bytes", content[:length]
    yield "twice", content * 2
    for number in range(FLIPS):
        flipped = bytearray(content)
        for _ in range(1 + number % 3):
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
        yield f"with other bytes, {number}", bytes(flipped)
    yield from _documents_in(file)


def _documents_in(file: Path) -> Iterator[tuple[str, bytes]]:
    """Contents of a file of JSON with other documents."""
    content = file.read_bytes()
    if file.suffix == ".json":
        for name, document in _documents(json.loads(content), 2):
            yield name, json.dumps(document).encode()
    elif file.suffix == ".jsonl":
        first, second, *others = content.splitlines(keepends=True)
        yield "in another order", b"".join([second, first, *others])
        yield "cut in a line", b"".join([first, second[: len(second) // 2] + b"\n", *others])
        for name, document in _documents(json.loads(second), 1):
            yield name, b"".join([first, json.dumps(document).encode() + b"\n", *others])


def _documents(document: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The document without each of its fields, and with other values in their places."""
    if not isinstance(document, dict) or not depth:
        return
    for name, value in document.items():
        yield f"without {name}", {other: document[other] for other in document if other != name}
        for wrong in WRONG_VALUES:
            yield f"with {name} = {wrong!r}", document | {name: wrong}
        for below, changed in _documents(value, depth - 1):
            yield f"{name}: {below}", document | {name: changed}


def _copy(good: Path, work: Path) -> None:
    if work.is_dir() and not work.is_symlink():
        shutil.rmtree(work)
    else:
        work.unlink(missing_ok=True)
    (shutil.copytree if good.is_dir() else shutil.copy)(good, work)
