"""Processes of a bundle, as the worker starts, watches and ends them: under bubblewrap where the
machine allows it, else with resource limits only.

A sandbox holds one bundle of one owner. Its fork server has loaded the libraries, and forks a
computing process for each session.
"""

import fcntl
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

import psutil

from fedcore import bundles
from fedcore.errors import BusyError, StaleLeaseError, UserCodeError
from fedcore.settings import Settings
from fedcore.simulation.out_of_memory import oom_kill_count
from workers.confined.confinement import ConfinementError, chosen_confinement, server_command
from workers.confined.limits import BUNDLE, ENDED, MAX_PROCESSES, UPLOADS
from workers.confined.protocol import WITH_DATA, Channel, Message

START_S = 120.0
"""Time for loading the libraries, on a busy machine."""
CLOCK = 4
"""Where the machine is busy, a step may take this many times its limit by the clock."""
DATA_SHARE = 2
"""A process that sends its state has it twice, so it has at most this part of its memory to send."""
_PREFIX, _LOCK = "fedq-bundle-", "lock"
_LOOK_S = 0.25
_END_S = 2.0


class Sandbox:
    """The processes of one bundle; `close` ends them all."""

    def __init__(self, archive: bytes, settings: Settings, device: str = "cpu") -> None:
        """Unpack the bundle and start its fork server.

        Raises ExtensionError if it is no bundle, ConfinementError, and BusyError.
        """
        self.confinement = chosen_confinement(settings)
        self.memory_bytes = settings.code_memory_bytes
        remove_abandoned()
        self._folder, self._lock = _locked_folder()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process: subprocess.Popen[bytes] | None = None
        self._session: Session | None = None
        self._control, theirs = socket.socketpair()
        try:
            for name in (BUNDLE, UPLOADS, "scratch"):
                (self._folder / name).mkdir()
            bundles.unpack(archive, self._folder / BUNDLE)
            with theirs:
                self._process = self._started(theirs.fileno(), settings, device)
            if self.ended(START_S) is None:
                self._fail()
        except BaseException:
            self.close()
            raise
        self._own = set(_descendants(self._process.pid))
        own = [psutil.Process(self._process.pid), *self._own]
        self.libraries_bytes = max(map(_memory_bytes, own))
        """Memory of the fork server, which sessions share."""
        for process in own:
            # Where the machine runs out of memory, sessions are the first to be killed.
            with suppress(OSError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def uploads(self) -> Path:
        """Folder of uploaded data sets, `<digest>.npz`, which sessions may read."""
        return self._folder / UPLOADS

    @property
    def alive(self) -> bool:
        """True if sessions can be started."""
        return self._process is not None and self._process.poll() is None

    def session(self, is_lost: Callable[[], bool] = lambda: False) -> "Session":
        """Fork a computing process, after the end of the one before; raises ConfinementError.

        It is ended as soon as `is_lost`.
        """
        self._end_session()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"s"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ConfinementError("the process for bundles has ended") from error
        self._session = Session(self, ours, is_lost)
        return self._session

    def processes(self) -> list[psutil.Process]:
        """The living processes of the session."""
        if self._process is None:
            return []
        return [process for process in _descendants(self._process.pid) if process not in self._own]

    def ended(self, timeout_s: float) -> int | None:
        """Wait for the exit code of the session's process; None if it does not end in time, or all
        has ended.
        """
        self._control.settimeout(timeout_s)
        try:
            code = self._control.recv(ENDED.size, socket.MSG_WAITALL)
        except OSError:
            return None
        return ENDED.unpack(code)[0] if len(code) == ENDED.size else None

    def has_ended(self) -> bool:
        """True if the session's process has ended, and `ended` returns at once."""
        return bool(select.select([self._control], [], [], 0)[0])

    def kill(self) -> None:
        """End all processes."""
        if self._process is None:
            return
        # Those that a process has started since it was seen are seen in the next pass.
        for _ in range(100):
            living = _descendants(self._process.pid)
            for process in living:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if not living:
                break
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End all processes and remove all files."""
        self._end_session()
        self.kill()
        self._control.close()
        self._errors.close()
        self._lock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _started(self, descriptor: int, settings: Settings, device: str) -> subprocess.Popen[bytes]:
        command, environment = server_command(self.confinement, self._folder, descriptor, settings, device)
        return subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd=self._folder / "scratch",
            env=environment,
            pass_fds=[descriptor],
            start_new_session=True,
        )

    def _fail(self) -> NoReturn:
        has_ended = self.has_ended()
        self.kill()
        if not has_ended:
            raise BusyError(f"the machine is busy: no libraries were loaded within {START_S:g} s; try again")
        self._errors.seek(0)
        said = self._errors.read()[-2_000:].decode(errors="replace").strip()
        raise ConfinementError(f"the process for bundles ended at its start: {said}")


@dataclass
class _Allowance:
    """The time that an answer may take: `seconds` of the bundle's own, and `clock_s` by the clock."""

    seconds: float
    clock_s: float
    began: float
    used_s: float = 0.0


class Session:
    """A computing process and its connection; `request` asks it for something."""

    def __init__(self, sandbox: Sandbox, connection: socket.socket, is_lost: Callable[[], bool]) -> None:
        self._sandbox, self._connection, self._is_lost = sandbox, connection, is_lost
        self._channel = Channel(connection)
        self._allowance: _Allowance | None = None
        self._looked, self._processor_s = time.monotonic(), 0.0
        self._reason: Exception | None = None
        self._closed = threading.Event()
        self._kills = oom_kill_count()
        self._watch = threading.Thread(target=self._look, name="sandbox", daemon=True)
        self._watch.start()

    def request(
        self,
        fields: Mapping[str, Any],
        timeout_s: float,
        data: bytes = b"",
        *,
        clock_s: float | None = None,
    ) -> Message:
        """Send a request and return the answer.

        The processes are killed if they take more time or memory than allowed, or are too many. `timeout_s`
        limits their processor time, no more than what passes by the clock, and time in which all
        sleep; time in which they wait for a processor or a disk is limited by the clock alone, to `clock_s`
        (default: CLOCK times `timeout_s`).

        Raises UserCodeError that names the cause, then or where they have ended; BusyError where
        the machine is the cause; StaleLeaseError where the run is lost; MemoryError where the system
        killed them because memory ran out.
        """
        max_data = self._sandbox.memory_bytes // DATA_SHARE if fields["do"] in WITH_DATA else 0
        clock_s = CLOCK * timeout_s if clock_s is None else clock_s
        self._allowance = _Allowance(timeout_s, clock_s, time.monotonic())
        try:
            self._channel.send(dict(fields), data)
            return self._channel.receive(max_data)
        except (EOFError, OSError):
            raise self._ending() from None
        finally:
            self._allowance = None

    def close(self) -> None:
        """End the process, and the sandbox if anything of the session is left."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._watch.join()
        self._channel.close()
        if self._sandbox.alive and (self._sandbox.ended(_END_S) is None or self._sandbox.processes()):
            self._sandbox.kill()

    def _ending(self) -> Exception:
        """The error of a process that is gone."""
        code = self._sandbox.ended(_END_S) if self._reason is None else None
        self._closed.set()
        self._watch.join()
        self._channel.close()
        # Whatever has not ended has let go of its connection.
        self._sandbox.kill()
        if code is not None and code < 0 and oom_kill_count() > self._kills:
            return MemoryError("the system ended the bundle's process because memory ran out")
        how = "ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code}"
        return self._reason or UserCodeError(f"the bundle's process {how} in the middle of its work")

    def _look(self) -> None:
        """Watch the processes until the session is closed."""
        while not self._closed.wait(_LOOK_S):
            self._reason = self._excess()
            # A process that has ended may have left another one with its connection.
            if self._reason is not None or self._sandbox.has_ended():
                self._sandbox.kill()
            if not self._sandbox.alive:
                # A process that has got away may hold the other end.
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
                return

    def _excess(self) -> Exception | None:
        if self._is_lost():
            # No answer could be committed.
            return StaleLeaseError("the run was deleted, or taken by its lease, during a step of its bundle")
        processes = self._sandbox.processes()
        if (late := self._late(processes)) is not None:
            return late
        if len(processes) > MAX_PROCESSES:
            return UserCodeError(f"the bundle started more than {MAX_PROCESSES} processes and was ended")
        allowed = self._sandbox.memory_bytes
        # Each shares the libraries with the fork server, until it changes them.
        if sum(max(0, _memory_bytes(each) - self._sandbox.libraries_bytes) for each in processes) > allowed:
            return UserCodeError(f"the bundle took more than {allowed} bytes of memory and was ended")
        return None

    def _late(self, processes: Sequence[psutil.Process]) -> Exception | None:
        """Count the time since the last look; the error of a request that has taken too long."""
        since, before = self._looked, self._processor_s
        now = self._looked = time.monotonic()
        self._processor_s = sum(map(_processor_s, processes))
        allowance = self._allowance
        if allowance is None:
            return None
        elapsed, computed = now - max(since, allowance.began), max(0.0, self._processor_s - before)
        # Processor time comes in steps of 10 ms.
        sleeps = not computed and not any(map(_waits_for_machine, processes))
        allowance.used_s += elapsed if sleeps else min(elapsed, computed)
        if allowance.used_s > allowance.seconds:
            return UserCodeError(
                f"the bundle took longer than {allowance.seconds:g} s for one step, in processor time and"
                " sleep, and was ended"
            )
        if now - allowance.began > allowance.clock_s:
            return BusyError(
                f"the machine is busy: in {allowance.clock_s:g} s the bundle got {allowance.used_s:.1f} s of"
                " processor time and did not finish one step; try again"
            )
        return None


def remove_abandoned() -> None:
    """Remove the files of sandboxes whose worker was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)


def _locked_folder() -> tuple[Path, IO[bytes]]:
    """A new temporary folder, and a file that is locked while its owner lives."""
    partial = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = (partial / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Only now: a folder that others see is locked.
    return partial.rename(partial.with_name(partial.name.removeprefix("."))), lock


def _memory_bytes(process: psutil.Process) -> int:
    """Resident memory of a process that is no file's, shared memory included."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines())
    # A process that has just ended has none.
    return sum(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem") if name in lines)


def _processor_s(process: psutil.Process) -> float:
    """Processor time of a process and of its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _waits_for_machine(process: psutil.Process) -> bool:
    """True if a process computes, or waits for a processor or a disk."""
    try:
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_WAKING, psutil.STATUS_DISK_SLEEP)
    except psutil.NoSuchProcess:
        return False


def _descendants(pid: int) -> list[psutil.Process]:
    """The living processes that descend from `pid`."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if _living(process)]


def _living(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
