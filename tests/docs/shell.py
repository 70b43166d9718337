"""A shell that is typed into."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

MARK = "--what the command printed ends here--"
PATIENCE_S = 240.0


class Answer(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    text: str


class Shell:
    """One bash for several commands, which see each other's variables and folders."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def type(self, command: str) -> Answer:
        """Carry out a command to its end; raises `queue.Empty` when it prints nothing for long."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %d\\n' '{MARK}' $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        while not (line := self._lines.get(timeout=PATIENCE_S)).startswith(MARK):
            lines.append(line)
        return Answer(int(line.removeprefix(MARK)), "".join(lines).strip())

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)
