"""A contender seen from outside: its process, its answers, and the memory of its process tree."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
PATIENCE_S = 30.0
_LOOK_S = 0.1
_SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HAYSTACK_TELEMETRY_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class Played(NamedTuple):
    """One turn: several rounds of a contender, one after another."""

    seconds: float
    steps: int


class Contender:
    """A process that plays rounds on request.

    A context manager that stops it and everything it has started.
    """

    def __init__(self, name: str, python: Path, folder: Path, *options: str) -> None:
        """Start it on the task in `folder` and wait until its first round can begin."""
        self.name = name
        self._log = (folder / f"{name}.log").open("w")
        # Each takes the cores as it likes: what this process was told about threads is not for
        # them.
        environment = {
            key: value for key, value in os.environ.items() if not key.endswith(("_NUM_THREADS", "_proxy"))
        }
        began = time.perf_counter()
        self._process = subprocess.Popen(  # noqa: S603 - our own
            (str(python), "-m", f"bench.peers.{name}", str(folder), *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment | _SILENT | {"PYTHONPATH": str(ROOT)},
        )
        self._answer()
        self.start_s = time.perf_counter() - began

    def play(self, rounds: range) -> Played:
        """Have it play these rounds."""
        answer = self._ask(do="play", first=rounds[0], last=rounds[-1])
        return Played(answer["seconds"], answer["steps"])

    def model(self, path: Path) -> NDArray[np.float64]:
        """The parameters of its global model, one vector; `path` is where it may put them."""
        self._ask(do="model", path=str(path))
        with np.load(path) as arrays:
            return np.concatenate([arrays[name].astype(np.float64).ravel() for name in sorted(arrays)])

    def tune(self) -> None:
        """Have it choose what is faster for it."""
        self._ask(do="tune")

    def describe(self) -> str:
        """Return the options it chose."""
        return str(self._ask(do="describe")["note"])

    def tree(self) -> list[psutil.Process]:
        """Return its process and all descendants."""
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            tree = self.tree()
        except psutil.NoSuchProcess:
            tree = []
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": "stop"}), file=self._process.stdin, flush=True)
            self._process.wait(PATIENCE_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        _, left = psutil.wait_procs(tree, 5.0)
        for process in left:
            process.kill()
        self._log.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.name} ended without an answer; the end of"
                f" {self._log.name}:\n{_end_of(Path(self._log.name))}"
            )
        return dict(json.loads(line))


def _end_of(log: Path, characters: int = 2_000) -> str:
    return log.read_text(errors="replace")[-characters:]


class Memory:
    """Peak memory of a process tree in bytes: proportional set size, which divides shared pages
    among those who share them.
    """

    def __init__(self) -> None:
        self.peak = 0

    @contextmanager
    def watching(self, contender: Contender) -> Iterator[None]:
        """Sample the memory repeatedly within the block."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(contender, done))
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _watch(self, contender: Contender, done: threading.Event) -> None:
        while True:
            self.peak = max(self.peak, sum(map(_bytes_of, contender.tree())))
            if done.wait(_LOOK_S):
                return


def _bytes_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # It has ended meanwhile.
        return 0
