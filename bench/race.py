"""Contenders on one workload, in turn (A B A B ...): the same rounds, those of a turn by each
before the next turn.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contender import Contender, Memory, Played
from bench.export import export
from bench.operations import Work, turns_of
from bench.workloads import Workload

OWN = ("fedq", "loop")
"""Those that run in the main environment."""
SHARED = {"pfl2": "pfl"}
"""Those that run in the environment of another."""
INSTALLED = "installed.txt"
"""The requirements an environment was made from, written when it is complete."""


@dataclass
class Entry:
    """Results of one contender."""

    name: str
    start_s: float
    """From the start of its process until its first round can begin."""
    first_s: float = 0.0
    """That round, with whatever is compiled for it."""
    peak_bytes: int = 0
    """Of its process tree, until the end of that round."""
    difference: float = 0.0
    """Of its model after that round from FedQ's, over how far FedQ's has moved."""
    note: str = ""
    turns: list[Played] = field(default_factory=list)


@dataclass
class Race:
    """A workload, the least work of its turns, and the entries, FedQ's first."""

    workload: str
    title: str
    entries: list[Entry]
    work: list[Work]
    """Of each turn in `QueuedExperiment.turns`."""
    together: int
    """Rounds in a turn."""


def race(
    workload: Workload, home: Path, contenders: Sequence[Sequence[str]], pairs: int, budget_s: float
) -> Race:
    """Start `contenders` (each its name and options), have each play a first round, compare the
    models, and time the next in turn.

    There are `pairs` turns each, or as many as `budget_s` allows for everything together.
    """
    together = workload.together
    folder = export(workload, home, 1 + pairs * together)
    deadline = time.monotonic() + budget_s
    with ExitStack() as stack:
        entered = [stack.enter_context(_started(home, folder, *contender)) for contender in contenders]
        running, entries = map(list, zip(*entered, strict=True))
        _compare(
            [contender.model(folder / f"{contender.name}-model.npz") for contender in running],
            entries,
            folder,
            workload.tolerance,
        )
        _turns(
            running,
            entries,
            [range(2 + turn * together, 2 + (turn + 1) * together) for turn in range(pairs)],
            deadline,
        )
        for contender, entry in zip(running, entries, strict=True):
            entry.note = contender.describe()
    return Race(
        workload.name, workload.title, entries, turns_of(folder, len(entries[0].turns), together), together
    )


@contextmanager
def _started(home: Path, folder: Path, name: str, *options: str) -> Iterator[tuple[Contender, Entry]]:
    memory = Memory()
    with Contender(name, python_of(name, home), folder, *options) as contender:
        entry = Entry(name, contender.start_s)
        contender.tune()
        with memory.watching(contender):
            entry.first_s = contender.play(range(1, 2)).seconds
        entry.peak_bytes = memory.peak
        yield contender, entry


def python_of(name: str, home: Path) -> Path:
    """Return the interpreter of a contender's environment.

    Raises FileNotFoundError if there is none, or only part of one.
    """
    if name in OWN:
        return Path(sys.executable)
    name = SHARED.get(name, name)
    folder = home / "environments" / name
    if not (folder / INSTALLED).exists():
        raise FileNotFoundError(
            f"{name} has no environment in {folder}; make it by `python -m bench environments --contenders"
            f" {name}`"
        )
    return folder / "bin" / "python"


def _compare(models: list[NDArray[np.float64]], entries: list[Entry], folder: Path, tolerance: float) -> None:
    """Fail if a model differs from the first contender's."""
    with np.load(folder / "initial.npz") as arrays:
        start = np.concatenate([arrays[name].astype(np.float64).ravel() for name in sorted(arrays)])
    moved = np.linalg.norm(models[0] - start)
    for model, entry in zip(models, entries, strict=True):
        entry.difference = float(np.linalg.norm(model - models[0]) / moved)
        if not entry.difference <= tolerance:
            raise RuntimeError(
                f"{entry.name} does other work: after a round its model is off by {entry.difference:.2g} of"
                " the way"
            )


def _turns(running: list[Contender], entries: list[Entry], turns: list[range], deadline: float) -> None:
    """Count turns: at least one, and no more than end before the deadline if they take as long as
    the last.
    """
    for rounds in turns:
        began = time.monotonic()
        _turn(running, entries, rounds)
        if 2 * time.monotonic() - began > deadline:
            return


def _turn(running: list[Contender], entries: list[Entry], rounds: range) -> None:
    for contender, entry in zip(running, entries, strict=True):
        entry.turns.append(contender.play(rounds))
    if len({entry.turns[-1].steps for entry in entries}) > 1:
        raise RuntimeError(
            f"{rounds} had different local steps:"
            f" {[(entry.name, entry.turns[-1].steps) for entry in entries]}"
        )
