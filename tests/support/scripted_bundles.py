"""Bundles whose processes are scripted: a thread of the test sends their answers through a real
connection to a real `Session`, without a sandbox, which takes seconds to start.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from hypothesis import strategies as st

from tests.builders.specifications import Document
from tests.support.mutations import ODD, paths
from workers.confined.protocol import Channel
from workers.confined.sandbox import Session

Answer = Callable[[dict[str, Any]], bytes]
"""Maps the JSON of a request to the bytes that are sent."""


def frame(fields: Any, data: bytes = b"") -> bytes:
    """A message with these fields, whatever they are."""
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("!IQ", len(text), len(data)) + text + data


class ScriptedProcess:
    """In place of a process of a bundle: it gets `share` of a processor, and is in the state `status`."""

    pid = 0

    def __init__(self, share: float, status: str) -> None:
        self._began, self._share, self._status = time.monotonic(), share, status

    def cpu_times(self) -> SimpleNamespace:
        """Return its processor time so far."""
        user = self._share * (time.monotonic() - self._began)
        return SimpleNamespace(user=user, system=0.0, children_user=0.0, children_system=0.0)

    def status(self) -> str:
        """Return its state, by the names of psutil."""
        return self._status


class ScriptedSandbox:
    """In place of `Sandbox`; its sessions answer as `answer` says."""

    confinement = "limits"
    libraries_bytes = 0

    def __init__(
        self, answer: Answer, memory_bytes: int = 1 << 30, processes: Sequence[ScriptedProcess] = ()
    ) -> None:
        self._answer, self.memory_bytes, self._processes = answer, memory_bytes, list(processes)
        self.exit_code: int | None = None
        self.alive = True
        self._theirs: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def uploads(self) -> Path:
        """A folder that is not there: nothing is given to a script."""
        return Path("/nowhere")

    def session(self, is_lost: Callable[[], bool] = lambda: False) -> Session:
        """A session with a thread that answers."""
        ours, theirs = socket.socketpair()
        self._theirs = theirs
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()
        return Session(self, ours, is_lost)  # type: ignore[arg-type]

    def processes(self) -> list[ScriptedProcess]:
        """The processes whose time is counted."""
        return self._processes

    def has_ended(self) -> bool:
        """Known to the session by its connection alone."""
        return False

    def ended(self, _timeout_s: float) -> int | None:
        """Return `exit_code`."""
        return self.exit_code

    def close(self) -> None:
        """End the thread."""
        self.kill()

    def kill(self) -> None:
        """End the thread."""
        self.alive = False
        if self._theirs is not None and self._thread is not None:
            with suppress(OSError):
                self._theirs.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._theirs.close()

    def _serve(self, theirs: socket.socket) -> None:
        channel = Channel(theirs)
        with suppress(OSError, EOFError):
            while True:
                theirs.sendall(self._answer(channel.receive(None).fields))
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)


SILENT = b""
"""No answer, and no end."""
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
HOSTILE: tuple[Any, ...] = (
    *ODD,
    *(float("nan"), float("inf"), -float("inf"), 2**63 - 1, 2**64, 10**300, -(10**300)),
    *("\x00", "a\x00b", "\x1b[2J", "\x85", "\ud800", "\udfff\ud800", "\u202e", "x" * 20_000, "/", "/kind/0"),
    *({"\x00": 1}, {"\ud800": 1}, {"": {}}, {str(number): 0 for number in range(2_000)}),
    *([0] * 20_000, [{}] * 2_000, DEEP, {"a": DEEP}),
)
"""Values that are wrong, or dangerous, almost anywhere in an answer."""


@st.composite
def lies(draw: st.DrawFn, answers: list[Document]) -> Document:
    """One of `answers` in which one or two values are replaced, removed, renamed or added."""
    answer = deepcopy(draw(st.sampled_from(answers)))
    for _ in range(draw(st.integers(1, 2))):
        known = paths(answer)
        if not known:
            break
        *place, key = draw(st.sampled_from(known))
        block = _at(answer, place)
        value = deepcopy(draw(st.sampled_from(HOSTILE)))
        match draw(st.sampled_from(("replace", "replace", "remove", "rename", "add"))):
            case "remove":
                del block[key]
            case "rename" if isinstance(block, dict):
                block[draw(st.sampled_from(("", "x", "kind", "\x00", "\ud800", "x" * 1_000)))] = block.pop(
                    key
                )
            case "add" if isinstance(block, dict):
                block["error" if draw(st.booleans()) else "more"] = value
            case _:
                block[key] = value
    return answer


def each_lie(answer: Document) -> Iterator[Document]:
    """`answer` with each of its values replaced by each of the hostile ones, and without it."""
    for *place, key in paths(answer):
        for value in HOSTILE:
            lie = deepcopy(answer)
            _at(lie, place)[key] = value
            yield lie
        lie = deepcopy(answer)
        del _at(lie, place)[key]
        yield lie


def _at(document: Any, place: Sequence[str | int]) -> Any:
    for part in place:
        document = document[part]
    return document


@contextmanager
def closing_session(sandbox: ScriptedSandbox) -> Iterator[Session]:
    """A session of `sandbox` that is closed in the end."""
    with sandbox:
        session = sandbox.session()
        try:
            yield session
        finally:
            session.close()
