"""Files that a function passes on its way: its own, and those of all that it calls."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class CallPath:
    """Records the files of functions that are called below `function`, in threads begun meanwhile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._start = function.__code__
        self._thread = threading.local()
        self.passed: set[str] = set()
        """Their names."""

    def __enter__(self) -> Self:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def files(self, *folders: str) -> list[str]:
        """The files in these folders of the repository."""
        inside = [str(Path(file).relative_to(ROOT)) for file in self.passed if file.startswith(str(ROOT))]
        return sorted(file for file in inside if file.startswith(folders))

    def _see(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if code is self._start and event in ("call", "return"):
            self._thread.is_inside = event == "call"
        if event == "call" and code.co_name != "<module>" and getattr(self._thread, "is_inside", False):
            self.passed.add(code.co_filename)
