"""What all contenders share, with NumPy alone: the task as `bench.export` wrote it, and the conversation with the bench.

The bench writes a request, one JSON object a line, to standard input: `{"do": "play", "round": 3}`. The answer is one on what was
standard output when the process began; what libraries print goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Assigned:
    """What one client does in a round."""

    client: int
    weight: float
    batches: list[NDArray[np.int64]]
    """The samples of each local step, by their place among the client's own."""


class Task:
    """A workload: data by client, the plan of its rounds, and the model they start from."""

    def __init__(self, folder: Path) -> None:
        self.about = json.loads((folder / "task.json").read_text())
        self.model: dict[str, Any] = self.about["model"]
        self.shape: tuple[int, ...] = tuple(self.about["shape"])
        self.classes: int = self.about["classes"]
        self.lr: float = self.about["local"]["lr"]
        self.batch_size: int = self.about["local"]["batch_size"]
        self.rounds: int = self.about["rounds"]
        self.features = np.load(folder / "features.npy", mmap_mode="c")
        self.labels = np.load(folder / "labels.npy")
        self.offsets = np.load(folder / "offsets.npy")
        self.clients = len(self.offsets) - 1
        with np.load(folder / "initial.npz") as initial:
            self.initial: Arrays = dict(initial)
        with np.load(folder / "plan.npz") as plan:
            self._plan: Arrays = dict(plan)
        self._starts = np.cumsum([0, *self._plan["steps"].ravel()])

    def data(self, client: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A client's features [n, ...] and labels [n]; the features lie in a file that all contenders map."""
        mine = slice(self.offsets[client], self.offsets[client + 1])
        return self.features[mine], self.labels[mine]

    def cohort(self, round: int) -> list[Assigned]:
        """The clients of round `round`, counted from 1."""
        row, (_, wide) = round - 1, self._plan["clients"].shape
        first = row * wide
        return [
            Assigned(int(client), float(weight), self._batches(first + place))
            for place, (client, weight) in enumerate(zip(self._plan["clients"][row], self._plan["weights"][row], strict=True))
        ]

    def _batches(self, place: int) -> list[NDArray[np.int64]]:
        rows = self._plan["batches"][self._starts[place] : self._starts[place + 1]]
        return [row[row >= 0] for row in rows]


class Contender(Protocol):
    """Plays rounds of a task."""

    def play(self, round: int) -> int:
        """Play round `round`; returns its local steps."""
        ...

    def model(self) -> Arrays:
        """The global model's parameters, named and laid out as in `Task.initial`."""
        ...

    def tune(self) -> None:
        """Choose what is faster on this machine; the model stays."""
        ...

    def describe(self) -> str:
        """What was chosen."""
        ...


class Channel:
    """The conversation; made before anything can print."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def requests(self) -> Iterator[dict[str, Any]]:
        """Until the bench says stop, or is gone."""
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "stop":
                return
            yield request

    def answer(self, **said: Any) -> None:
        """One line."""
        print(json.dumps(said), file=self._out, flush=True)


def serve(channel: Channel, contender: Contender) -> None:
    """Answer requests one after another."""
    channel.answer(ready=True)
    for request in channel.requests():
        match request["do"]:
            case "play":
                began = time.perf_counter()
                steps = contender.play(request["round"])
                channel.answer(seconds=time.perf_counter() - began, steps=steps)
            case "model":
                np.savez(request["path"], allow_pickle=False, **contender.model())
                channel.answer(path=request["path"])
            case "tune":
                contender.tune()
                channel.answer()
            case "describe":
                channel.answer(note=contender.describe())


def folder() -> Path:
    """The task's, from the command line."""
    return Path(sys.argv[1])
