"""The checkpoints of one run: `<run>/<round>-<fence>.safetensors`, the newest two kept.

The fence is in the name, so a worker that lost its claim cannot write over its successor's.
"""

import logging
import re
from typing import Self

from fedcore.errors import CheckpointError, NotFoundError
from fedcore.experiment import Simulation
from fedcore.storage import Storage
from fedcore.store.claim import Claim

_NAME = re.compile(r"/(\d+)-(\d+)\.safetensors$")
_KEPT = 2

log = logging.getLogger(__name__)


class Checkpoints:
    """Where the states of a run are kept while one claim on it lasts."""

    def __init__(self, storage: Storage, claim: Claim, keys: list[str]) -> None:
        self._storage, self._claim = storage, claim
        self._keys = sorted(keys, key=_round_and_fence)

    @classmethod
    def of(cls, storage: Storage, claim: Claim) -> Self:
        """Those that earlier claims left."""
        keys = storage.keys(claim.run_id) if claim.done else []
        return cls(storage, claim, [key for key in keys if _NAME.search(key)])

    def restore(self, simulation: Simulation) -> None:
        """Bring `simulation` as far towards the claim's last committed round as a readable checkpoint does; not at all without one."""
        usable = [key for key in self._keys if key != self._claim.checkpoint and _round_and_fence(key)[0] <= self._claim.done]
        newest = [] if self._claim.checkpoint is None else [self._claim.checkpoint]
        for key in [*newest, *reversed(usable)]:
            try:
                with self._storage.open(key) as file:
                    simulation.restore(file.read())
            except (CheckpointError, NotFoundError) as error:
                log.warning("run %s falls back behind checkpoint %s: %s", self._claim.run_id, key, error)
            else:
                return

    def save(self, simulation: Simulation) -> str:
        """Store the state after the simulation's last round; returns its key."""
        key = f"{self._claim.run_id}/{simulation.round}-{self._claim.fence}.safetensors"
        self._storage.put(key, simulation.checkpoint())
        return key

    def keep(self, key: str) -> None:
        """`key` is committed: forget all but it and the one before."""
        self._keys.append(key)
        for old in self._keys[:-_KEPT]:
            self._storage.delete(old)
        self._keys = self._keys[-_KEPT:]

    def drop(self, key: str) -> None:
        """`key` was not committed, and nobody will ever ask for it."""
        self._storage.delete(key)


def _round_and_fence(key: str) -> tuple[int, int]:
    found = _NAME.search(key)
    return (int(found[1]), int(found[2])) if found else (0, 0)
