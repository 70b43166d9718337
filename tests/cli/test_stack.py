"""`fedq up` and `fedq demo`, with all their processes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from api.client import Client
from tests.documents import SYNTHETIC, merged
from tests.support.polling import eventually

pytestmark = pytest.mark.slow

EXPERIMENT = merged(SYNTHETIC, {"name": "some seconds of work", "rounds": 300})
START_S, STOP_S = 60.0, 40.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path short enough for sockets; no process is left that was started in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        assert [process for process in psutil.process_iter() if folder in " ".join(_command(process))] == []


def test_up_stops_on_ctrl_c_and_goes_on_where_it_was(place: Path) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1") as first, Client(_url(place)) as client:
        id = client.submit(EXPERIMENT).id
        eventually(lambda: client.experiment(id).progress.rounds_done > 0, timeout_s=START_S)
        assert _interrupted(first) == 0
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1") as second, Client(_url(place)) as client:
        (run,) = client.runs(id)
        assert 0 < run.rounds_done < EXPERIMENT["rounds"], "the run was over before it was interrupted, or began anew"
        assert client.wait(id, timeout_s=START_S).status == "succeeded"
        assert [row.round for row in client.rounds(run.id)] == list(range(1, EXPERIMENT["rounds"] + 1))
        assert _interrupted(second) == 0


def test_up_says_why_it_cannot_start(place: Path) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--host=192.0.2.1", "--workers=1") as process:
        assert process.wait(START_S) == 1
    assert "cannot listen on 192.0.2.1:8642" in _log(place).read_text()


def test_the_demo_prints_a_table_draws_pictures_and_leaves_nothing_running(place: Path) -> None:
    with _fedq(place, "demo", "--set", "rounds=2", "--set", "seeds=[0, 1]", "--output", str(place / "pictures")) as process:
        assert process.wait(START_S) == 0, _log(place).read_text()
    printed = _log(place).read_text()
    assert printed.count("succeeded after 2 rounds") == 8
    assert "test accuracy in %, mean ± std over 2 seeds" in printed
    for arm in ("fedavg", "fedprox mu=0.1", "fednova", "scaffold"):
        assert any(line.strip().startswith(arm) and "±" in line for line in printed.splitlines())
    assert {picture.name for picture in (place / "pictures").iterdir()} == {"demo.svg", "demo.png"}
    assert list((place / "tmp").iterdir()) == []


def test_an_interrupted_demo_cleans_up(place: Path) -> None:
    with _fedq(place, "demo", "--output", str(place / "pictures")) as process:
        eventually(lambda: list((place / "tmp").glob("*/ready")), timeout_s=START_S)
        assert _interrupted(process) == 130
    assert list((place / "tmp").iterdir()) == []


@contextmanager
def _fedq(place: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command, run in `place` as from a terminal, its output in a log."""
    (place / "tmp").mkdir(exist_ok=True)
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(place / "tmp"), "FEDQ_SLICE_SECONDS": "0.1"}
    with _log(place).open("wb") as log:
        command = [sys.executable, "-m", "api.cli", *arguments]
        process = subprocess.Popen(command, cwd=place, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_S)


def _interrupted(process: subprocess.Popen[bytes]) -> int:
    """The exit code after Ctrl-C, which a terminal sends to the whole group."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(STOP_S)


def _url(place: Path) -> str:
    ready = "FedQ is ready at "
    return eventually(lambda: _log(place).read_text().partition(ready)[2].partition("\n")[0], timeout_s=START_S)


def _log(place: Path) -> Path:
    return place / "log"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
