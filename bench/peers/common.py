"""Code shared by all contenders, with NumPy alone: the task as `bench.export` wrote it, and the
protocol between bench and contender.

The bench writes requests to standard input, one JSON object per line: `{"do": "play", "first": 3,
"last": 5}`. The answer is one line on the process's original standard output; whatever libraries
print goes to standard error.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Assigned:
    """The work of one client in a round."""

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
        with np.load(folder / "frozen.npz") as frozen:
            self.frozen: Arrays = dict(frozen)
        with np.load(folder / "plan.npz") as plan:
            self._plan: Arrays = dict(plan)
        self._starts = np.cumsum([0, *self._plan["steps"].ravel()])

    def data(self, client: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A client's features [n, ...] and labels [n], or [n, T] of sequences.

        The features lie in a file that all contenders map.
        """
        mine = slice(self.offsets[client], self.offsets[client + 1])
        return self.features[mine], self.labels[mine]

    def cohort(self, round: int) -> list[Assigned]:
        """The clients of round `round`, counted from 1."""
        row, (_, wide) = round - 1, self._plan["clients"].shape
        first = row * wide
        return [
            Assigned(int(client), float(weight), self._batches(first + place))
            for place, (client, weight) in enumerate(
                zip(self._plan["clients"][row], self._plan["weights"][row], strict=True)
            )
        ]

    def _batches(self, place: int) -> list[NDArray[np.int64]]:
        rows = self._plan["batches"][self._starts[place] : self._starts[place + 1]]
        return [row[row >= 0] for row in rows]


class Describes(Protocol):
    """Holds a model."""

    def model(self) -> Arrays:
        """The global model's parameters, named and laid out as in `Task.initial`."""
        ...

    def tune(self) -> None:
        """Choose the faster option on this machine; the model stays."""
        ...

    def describe(self) -> str:
        """Return the options chosen."""
        ...


class Contender(Describes, Protocol):
    """Plays rounds of a task."""

    def play(self, round: int) -> int:
        """Play round `round`; returns its local steps."""
        ...


class Channel:
    """The connection to the bench; created before anything can print.

    A simulator that keeps the loop over rounds to itself calls `next_round` where it would begin
    one, and `played` after it.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._began, self._steps, self._waiting = 0.0, 0, list[int]()

    def ready(self) -> None:
        """Tell the bench that the first round can begin."""
        self._answer(ready=True)

    def next_round(self, contender: Describes) -> int | None:
        """Return the round to play; None if the bench says stop, or is gone.

        Other requests are answered meanwhile.
        """
        if self._waiting:
            return self._waiting.pop(0)
        for line in sys.stdin:
            request = json.loads(line)
            match request["do"]:
                case "stop":
                    return None
                case "play":
                    first, *self._waiting = range(request["first"], request["last"] + 1)
                    self._began, self._steps = time.perf_counter(), 0
                    return first
                case "model":
                    np.savez(request["path"], allow_pickle=False, **contender.model())
                    self._answer(path=request["path"])
                case "tune":
                    contender.tune()
                    self._answer()
                case "describe":
                    self._answer(note=contender.describe())
        return None

    def played(self, steps: int) -> None:
        """Report a round of `steps` local steps; after the last round requested, answer the bench."""
        self._steps += steps
        if not self._waiting:
            self._answer(seconds=time.perf_counter() - self._began, steps=self._steps)

    def _answer(self, **said: Any) -> None:
        print(json.dumps(said), file=self._out, flush=True)


def serve(channel: Channel, contender: Contender) -> None:
    """Play round after round."""
    channel.ready()
    while (round := channel.next_round(contender)) is not None:
        channel.played(contender.play(round))


def folder() -> Path:
    """The task's folder, from the command line."""
    return Path(sys.argv[1])
