"""Stages of runs without a service, each computed by a process of its own: from the last checkpoint of
a run to its end, or to a rung of its search.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.lazy import LazyModule
from fedcore.platform.watchdog import end_with_parent
from fedcore.spec.engines import ArmFacts
from fedq.local.code import load_code
from fedq.local.folder import RunKey

if TYPE_CHECKING:
    from fedq.local import folder_run
else:
    # Only the computing processes load PyTorch.
    folder_run = LazyModule("fedq.local.folder_run")


@dataclass(frozen=True)
class Stage:
    """Rounds of a run, up to round `until`."""

    key: RunKey
    spec: dict[str, Any]
    """Specification of the arm."""
    arms: ArmFacts
    """Facts about all arms of the experiment."""
    until: int
    experiment_id: str


@dataclass(frozen=True)
class Setup:
    """Settings that the computing processes of an experiment share."""

    folder: Path
    code: Path | None
    """Folder with components of the user."""
    threads: int
    """Threads of the tensor library."""
    parent: int
    """Process id of the parent."""
    devices: SimpleQueue[str]
    """A device for each process."""
    rounds: SynchronizedArray[int]
    """Rounds done, by position of the run."""
    stopping: Event
    """Set when the processes are to end after the present round."""


class _Process:
    """State of a computing process."""

    setup: Setup
    device: str


def begin_process(setup: Setup) -> None:
    """Prepare this process; called once, before its first stage."""
    # Ctrl-C is the parent's to handle; without a parent nothing would hold the lock of the runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # of Slurm, to all processes of a job
    faulthandler.enable()  # Of a process that crashes, the pool tells nothing.
    end_with_parent()
    if os.getppid() != setup.parent:
        os._exit(1)
    if setup.code is not None:
        load_code(setup.code)
    _Process.setup, _Process.device = setup, setup.devices.get()


def compute_stage(place: int, stage: Stage) -> None:
    """Compute a stage of the run at position `place`; errors are written to the run."""
    if not _Process.setup.stopping.is_set():
        folder_run.compute(place, stage, _Process.setup, _Process.device)
