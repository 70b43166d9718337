"""The checkpoints of one run: `<run>/<round>-<fence>.safetensors`, the newest two good ones kept.

The fence is in the name, so a worker that lost its claim cannot write over its successor's.
"""

import logging
import re

from fedcore.errors import CheckpointError, ResourceNotFoundError, StorageError
from fedcore.platform.storage import Storage, read
from fedcore.platform.store.claim import Claim
from fedcore.simulation.simulation import Simulation

_NAME = re.compile(r"/(\d+)-(\d+)\.safetensors$")
_KEPT = 2

log = logging.getLogger(__name__)


class Checkpoints:
    """Where the states of a run are kept while one claim on it lasts."""

    def __init__(self, storage: Storage, claim: Claim) -> None:
        self._storage, self._claim = storage, claim
        self._keys: list[str] = []

    def look(self) -> None:
        """Find those that earlier claims left."""
        keys = self._storage.keys(self._claim.run_id) if self._claim.done else []
        self._keys = sorted((key for key in keys if _NAME.search(key)), key=_round_and_fence)

    def restore(self, simulation: Simulation) -> None:
        """Bring `simulation` as far towards the claim's last committed round as a readable
        checkpoint does; not at all without one.

        Raises StorageError when there is none because of the storage.
        """
        usable = [
            key
            for key in self._keys
            if key != self._claim.checkpoint and _round_and_fence(key)[0] <= self._claim.done
        ]
        newest = [] if self._claim.checkpoint is None else [self._claim.checkpoint]
        unread: StorageError | None = None
        for key in [*newest, *reversed(usable)]:
            try:
                simulation.restore(read(self._storage, key))
            except (CheckpointError, ResourceNotFoundError, StorageError) as error:
                log.warning("run %s falls back behind checkpoint %s: %s", self._claim.run_id, key, error)
                unread = error if isinstance(error, StorageError) else unread
                self._demote(key)
            else:
                return
        if unread is not None:
            # The storage is away as a whole, and may come back with a checkpoint.
            raise unread

    def save(self, round: int, state: bytes) -> str:
        """Store the state after a round; returns its key."""
        key = f"{self._claim.run_id}/{round}-{self._claim.fence}.safetensors"
        self._storage.put(key, state)
        return key

    def keep(self, key: str) -> None:
        """`key` is committed: forget all but it and the last good one before.

        What cannot be removed now, with the next.
        """
        self._keys.append(key)
        try:
            while len(self._keys) > _KEPT:
                self._storage.delete(self._keys[0])
                self._keys.pop(0)
        except StorageError as error:
            log.warning("an old checkpoint stays for now: %s", error)

    def drop(self, key: str) -> None:
        """`key` was not committed, and nobody will ever ask for it."""
        try:
            self._storage.delete(key)
        except StorageError as error:
            log.warning("a checkpoint of nobody stays: %s", error)

    def _demote(self, key: str) -> None:
        """`key` is not worth keeping: it is the first to go."""
        self._keys = (
            [key, *(other for other in self._keys if other != key)] if key in self._keys else self._keys
        )


def _round_and_fence(key: str) -> tuple[int, int]:
    found = _NAME.search(key)
    return (int(found[1]), int(found[2])) if found else (0, 0)
