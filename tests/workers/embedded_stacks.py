"""A running embedded stack and its processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import psutil

from tests.support.commands import log_of, started, url_of

PROCESSES = {
    "api": "api.app:create_app",
    "reconciler": "reconciler",
    "worker-1": "worker-1",
    "forkserver": "workers.embedded.forkserver",
    "broker": "valkey-server",
}
"""Process ids of a stack with one worker, by the names that its supervisor gives them."""


class RunningStack:
    """A stack with one worker; its home is `home` in the folder where it was started."""

    def __init__(self, place: Path, supervisor: Popen[bytes]) -> None:
        """Waits until it is ready."""
        self.url = url_of(place)
        self.home = place / "home"
        self.key = (self.home / "api-key").read_text().strip()
        self._place, self._supervisor = place, supervisor

    def pid(self, name: str) -> int:
        """The process with this name; 0 while there is none."""
        return children(self._supervisor).get(PROCESSES[name], 0)

    def replaced(self, name: str, pid: int) -> bool:
        """True if another process has taken the place of `pid`."""
        return self.pid(name) not in (0, pid)

    def log(self) -> str:
        """Log of the supervisor."""
        return log_of(self._place).read_text()


@contextmanager
def running_stack(place: Path, module: str = "workers.embedded.supervisor") -> Iterator[RunningStack]:
    """A stack that was started in `place` and lives as long as the block."""
    with started(place, module, f"--home={place / 'home'}", "--port=0", "--workers=1") as supervisor:
        yield RunningStack(place, supervisor)


def children(supervisor: Popen[bytes]) -> dict[str, int]:
    """The process ids of a stack's own children and those of its fork server, by what they run."""
    own = psutil.Process(supervisor.pid).children()
    lines = {child.pid: _command_line(child) for child in own}
    for server in (child for child in own if PROCESSES["forkserver"] in lines[child.pid]):
        lines |= {child.pid: child.name() for child in server.children()}
    return {name: pid for name in PROCESSES.values() for pid, line in lines.items() if name in line}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
