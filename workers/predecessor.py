"""Whom a worker's child follows: when the system ended that one for want of memory, its runs need not wait for their leases.

They then go on with less memory, and say why.
"""

import mmap

from fedcore.shortage import kills

_LENGTH, _NUMBER = 512, 8


class Predecessor:
    """What children leave to the next in memory that they share, without a lock; made before the fork."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _LENGTH)

    def follow(self, worker_id: str) -> str | None:
        """Of this process, the child: begin. The id of the one before, if it died while the system ended processes for want of memory."""
        before, now = int.from_bytes(self._shared[:_NUMBER], "little"), kills()
        previous = self._shared[_NUMBER:].rstrip(b"\0").decode()
        self._write(now, worker_id)
        return previous if previous and now > before else None

    def end(self) -> None:
        """Leave nothing: this process ends of its own accord."""
        self._write(0, "")

    def _write(self, count: int, worker_id: str) -> None:
        left = count.to_bytes(_NUMBER, "little") + worker_id.encode()
        self._shared[:] = left[:_LENGTH].ljust(_LENGTH, b"\0")
