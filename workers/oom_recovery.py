"""Recovery of runs whose worker the system killed because memory ran out: they go on with less
memory.

A worker keeps a file that says which runs it holds and how many processes the system has killed so
far. The file is locked while the worker lives, and outlives it: the next worker on the machine
finds it unlocked, even where the system killed all processes of a container at once
(`memory.oom.group`).
"""

import fcntl
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from fedcore.platform.out_of_memory import ADVICE, oom_kill_count
from fedcore.platform.store import UNAVAILABLE, open_database, recovery, workers
from fedcore.settings import Settings

FOLDER = "workers"
"""Of the files, in FEDQ_HOME."""
FORGET_S = 86_400.0
"""A file of another boot that has not changed for this long is removed."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class HeldRuns:
    """The runs that one worker holds, as a file that its successor can read.

    Create it after a fork.
    """

    def __init__(self, home: Path, worker_id: str) -> None:
        """Where the file cannot be written, the runs of a killed worker wait for their leases."""
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
        """Note that these are held, and how many processes the system has killed by now."""
        line = self._line(run_ids)
        with self._lock, suppress(OSError):
            if self._file is not None:
                # Over the line before, in one call, so that either is whole. Only the first line
                # counts.
                self._file.seek(0)
                self._file.write(line)

    def close(self) -> None:
        """Remove the file: this worker ends of its own accord."""
        with self._lock:
            if self._file is not None:
                self._path.unlink(missing_ok=True)
                self._file.close()
                self._file = None

    def _line(self, run_ids: Sequence[str]) -> bytes:
        noted = {"worker": self._worker_id, "boot": self._boot, "kills": oom_kill_count(), "runs": run_ids}
        return json.dumps(noted).encode() + b"\n"


def requeue_oom_killed(configured: Settings) -> None:
    """Requeue the runs of workers on this machine that ended while the system killed processes for
    memory.
    """
    for path in sorted((configured.home / FOLDER).glob("*.json")):
        # Gone: another worker has seen to it. Locked: its worker lives.
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_over(configured, json.loads(file.readline()), time.time() - path.stat().st_mtime):
                path.unlink()


def _is_over(configured: Settings, left: dict[str, Any], age_s: float) -> bool:
    """Requeue what a worker has left, written `age_s` ago, if it was killed.

    False where the file must stay.
    """
    if left["boot"] != _boot():
        # Of a machine that has restarted, or of another one that shares the folder and sees to it.
        return age_s > FORGET_S
    return oom_kill_count() <= left["kills"] or _requeue(configured, left["worker"], left["runs"])


def _requeue(configured: Settings, worker: str, run_ids: Sequence[str]) -> bool:
    """Requeue the runs of a worker that was killed; False while the database is away."""
    error = f"memory ran out, and the system ended the worker; {ADVICE}"
    database = open_database(configured.database)
    try:
        with database.transaction() as session:
            taken = recovery.requeue_oom_killed(
                session, worker, error, configured.attempts, configured.backoff_seconds
            )
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
    """The id of this start of this machine, which its containers share, as they share the count of
    kills.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
