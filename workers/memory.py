"""Memory of a worker: how much its runs may take, and recovery of runs whose worker the system
killed because memory ran out.

A worker keeps a file that says which runs it holds and how many processes the system has killed so
far. The file is locked while the worker lives, and outlives it: the next worker on the machine
finds it unlocked, even where the system killed all processes of a container at once
(`memory.oom.group`), and requeues the runs to go on with less memory.

PyTorch is imported only where a GPU is asked for: the parent process never loads it.
"""

import fcntl
import json
import logging
import resource
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from fedcore.platform.store import UNAVAILABLE, open_database, recovery, workers
from fedcore.platform.store.backoff import BACKOFF_S, MAX_ATTEMPTS
from fedcore.settings import Settings
from fedcore.simulation.out_of_memory import ADVICE, oom_kill_count

LIBRARIES_BYTES = 1 << 30
"""Taken by a worker before its first run, at most half of the memory; an idle one takes 0.6 to
0.8 GB, with a GPU more.
"""
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MACHINE = Path("/proc/meminfo")

log = logging.getLogger(__name__)


def memory_limit(device: str, given: int | None = None) -> int:
    """Return the bytes that runs may take: `given`, or what the machine, the container or the GPU has,
    less what the libraries take.
    """
    if given is not None:
        return given
    whole = host_memory_bytes()
    left = whole - min(LIBRARIES_BYTES, whole // 2)
    if not device.startswith("cuda"):
        return left
    import torch

    return min(left, torch.cuda.get_device_properties(device).total_memory)


def host_memory_bytes(machine: Path = _MACHINE, limits: Iterable[Path] = _GROUP_LIMITS) -> int:
    """Memory of the machine in bytes, or less where the control group or the limits of this process
    say so.
    """
    fields = dict(line.split(":", 1) for line in machine.read_text().splitlines())
    whole = int(fields["MemTotal"].split()[0]) << 10
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min([whole, *filter(None, map(_limit, limits)), *([] if own == resource.RLIM_INFINITY else [own])])


def _limit(path: Path) -> int | None:
    """The limit that a control group has, if any."""
    try:
        said = path.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None


FOLDER = "workers"
"""Folder of the files, in FEDQ_HOME."""
FORGET_S = 86_400.0
"""A file of another boot that has not changed for this long is removed."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class HeldRuns:
    """File of the runs that one worker holds, for its successor. Create it after a fork."""

    def __init__(self, home: Path, worker_id: str) -> None:
        """If the file cannot be written, the runs of a killed worker wait for their leases."""
        self._path = home / FOLDER / f"{worker_id}.json"
        self._worker_id, self._boot = worker_id, _boot()
        self._lock = Lock()
        self._file: BinaryIO | None = None
        partial = self._path.with_suffix(".partial")
        try:
            for folder in (home, partial.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = partial.open("wb", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(self._line(()))
            # Only now: a file that others see is whole, and locked while its worker lives.
            partial.rename(self._path)
            self._file = file
        except OSError as error:
            log.warning("no file of held runs, an out-of-memory kill will not be recognised: %s", error)

    def write(self, run_ids: Sequence[str]) -> None:
        """Record the runs held, and how many processes the system has killed by now."""
        line = self._line(run_ids)
        with self._lock, suppress(OSError):
            if self._file is not None:
                # Over the line before, in one call, so that either is whole. Only the first line
                # counts.
                self._file.seek(0)
                self._file.write(line)

    def close(self) -> None:
        """Remove the file before an orderly exit."""
        with self._lock:
            if self._file is not None:
                self._path.unlink(missing_ok=True)
                self._file.close()
                self._file = None

    def _line(self, run_ids: Sequence[str]) -> bytes:
        noted = {"worker": self._worker_id, "boot": self._boot, "kills": oom_kill_count(), "runs": run_ids}
        return json.dumps(noted).encode() + b"\n"


def requeue_oom_killed(settings: Settings, backoff_s: float = BACKOFF_S) -> None:
    """Requeue the runs of workers of this machine that ended while the system was killing processes
    for memory; they are not claimed again for `backoff_s`, or longer the more often this has happened.
    """
    for path in sorted((settings.home / FOLDER).glob("*.json")):
        # Gone: another worker has seen to it. Locked: its worker lives.
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left, age_s = json.loads(file.readline()), time.time() - path.stat().st_mtime
            if _is_over(settings, left, age_s, backoff_s):
                path.unlink()


def _is_over(settings: Settings, left: dict[str, Any], age_s: float, backoff_s: float) -> bool:
    """Requeue the runs of a file written `age_s` ago if its worker was killed.

    Returns False where the file must stay.
    """
    if left["boot"] != _boot():
        # Of a machine that has restarted, or of another one that shares the folder and sees to it.
        return age_s > FORGET_S
    none_killed = oom_kill_count() <= left["kills"]
    return none_killed or _requeue(settings, left["worker"], left["runs"], backoff_s)


def _requeue(settings: Settings, worker: str, run_ids: Sequence[str], backoff_s: float) -> bool:
    """Requeue the runs of a worker that was killed; False while the database is away."""
    error = f"memory ran out, and the system ended the worker; {ADVICE}"
    database = open_database(settings.database)
    try:
        with database.transaction() as session:
            taken = recovery.requeue_oom_killed(session, worker, error, MAX_ATTEMPTS, backoff_s)
            workers.gone(session, worker)
        with database.transaction() as session:
            recovery.count_out_of_memory(session, set(run_ids) - set(taken), error)
    except UNAVAILABLE as away:
        log.warning("the runs of worker %s are left to their leases, the database is away: %s", worker, away)
        return False
    finally:
        database.close()
    log.error("worker %s was killed because memory ran out, its runs go on with less: %s", worker, run_ids)
    return True


def _boot() -> str:
    """Id of this boot of the machine; its containers share it, as they share the count of kills."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
