"""Simulations of a worker: the last ones stay in memory, so that continuing their runs costs no
loading, and the checkpoints that others are restored from.
"""

import logging
import re
from collections.abc import Callable, Hashable, Sequence

from fedcore import ExperimentSpec
from fedcore.data.uploaded import DatasetStorage
from fedcore.engine.choice import EngineChoice
from fedcore.errors import CheckpointError, ResourceNotFoundError, StorageError
from fedcore.platform.provenance import ENGINE_CHOICE
from fedcore.platform.storage import Storage, read
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import Document
from fedcore.simulation.computed_run import ComputedRun
from fedcore.simulation.out_of_memory import MEMORY_DIVISOR
from fedcore.simulation.shard_member import ShardMember
from fedcore.simulation.simulation import Simulation, batch_key
from fedcore.spec.engines import ArmFacts, facts_about
from fedcore.spec.experiment import Arm
from workers.confined.runs import ConfinedRuns, bundle_of
from workers.confined.simulation import ConfinedSimulation
from workers.weights import UploadedWeights

_NAME = re.compile(r"/(\d+)-(\d+)\.safetensors$")
_KEPT = 2

log = logging.getLogger(__name__)


class Checkpoints:
    """Checkpoints of one run: `<run>/<round>-<fence>.safetensors`, of which the newest two good ones
    are kept.

    The fence is in the name, so a worker that lost its claim cannot overwrite its successor's.
    """

    def __init__(self, storage: Storage, claim: Claim) -> None:
        self._storage, self._claim = storage, claim
        self._keys: list[str] = []

    def find(self) -> None:
        """Find the checkpoints of earlier claims."""
        keys = self._storage.keys(self._claim.run_id) if self._claim.done else []
        self._keys = sorted((key for key in keys if _NAME.search(key)), key=_round_and_fence)

    def restore(self, simulation: ComputedRun) -> None:
        """Restore `simulation` from the newest readable checkpoint up to the last committed round.

        Leaves it as it is without one. Raises StorageError when the storage is why there is none.
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
        """Store the state after a round and return its key."""
        key = f"{self._claim.run_id}/{round}-{self._claim.fence}.safetensors"
        self._storage.put(key, state)
        return key

    def keep(self, key: str) -> None:
        """Note that `key` is committed; delete all but it and the last good one before.

        Those that cannot be deleted now are deleted with the next.
        """
        self._keys.append(key)
        try:
            while len(self._keys) > _KEPT:
                self._storage.delete(self._keys[0])
                self._keys.pop(0)
        except StorageError as error:
            log.warning("an old checkpoint stays for now: %s", error)

    def drop(self, key: str) -> None:
        """Delete a checkpoint that was not committed."""
        try:
            self._storage.delete(key)
        except StorageError as error:
            log.warning("an uncommitted checkpoint stays: %s", error)

    def _demote(self, key: str) -> None:
        """Make an unreadable checkpoint the first to be deleted."""
        self._keys = (
            [key, *(other for other in self._keys if other != key)] if key in self._keys else self._keys
        )


def _round_and_fence(key: str) -> tuple[int, int]:
    found = _NAME.search(key)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class SimulationCache:
    """Simulations of the latest runs, all of one experiment, and its arms."""

    def __init__(
        self,
        device: str,
        storage: DatasetStorage,
        weights: UploadedWeights,
        confined: ConfinedRuns,
        create: Callable[..., Simulation] = Simulation,
    ) -> None:
        """Compute on `device`; uploaded data sets are in `storage`.

        Runs with a code bundle are computed by `confined`, others by what `create` makes.
        """
        self._create_simulation = create
        self._device, self._storage, self._confined = device, storage, confined
        self._weights = weights
        self._document: Document = {}
        self._arms: list[Arm] = []
        self._facts: ArmFacts | None = None
        self._kinds: list[Hashable] = []
        self._held: dict[str, Simulation] = {}
        self._computing: ConfinedSimulation | None = None

    def get(self, claim: Claim, checkpoints: Checkpoints, is_lost: Callable[[], bool]) -> ComputedRun:
        """Return the run's simulation after round `claim.done`; that of a bundle ends once the claim
        `is_lost`.

        Raises SpecificationError or DataUnavailableError when the run cannot be executed here.
        """
        if bundle_of(claim) is not None:
            return self._start_confined(claim, checkpoints, is_lost)
        arm = self._arms_of(claim)[claim.arm]
        held = self._held.pop(claim.run_id, None)
        if held is None or held.round != claim.done or held.spec != arm.spec:
            held = self._create(arm, claim)
            checkpoints.restore(held)
        self._held[claim.run_id] = held
        return held

    def member_of(self, claim: Claim) -> ShardMember:
        """The part in the run that another worker holds, to train shards of it.

        Raises SpecificationError or DataUnavailableError when the run cannot be executed here.
        """
        self._held = {}
        return ShardMember(self._create(self._arms_of(claim)[claim.arm], claim))

    def compatible_arms(self, claim: Claim) -> list[int]:
        """Arms of the experiment whose runs are faster when trained together with this one."""
        arms = self._arms_of(claim)
        # Trials of a study that were not proposed yet have no settings; they may have some by now.
        known = [arm for arm in arms if bool(arm.settings) == bool(arms[claim.arm].settings)]
        return [arm.index for arm in known if self._kinds[arm.index] == self._kinds[claim.arm]]

    def start(self, claim: Claim) -> None:
        """Begin a session with this run.

        If it is in the cache, its batch may come again; otherwise the others only take memory.
        """
        if claim.run_id not in self._held:
            self._held = {}
        self._confined.keep_for(claim.experiment_id)

    def retain(self, claims: Sequence[Claim]) -> None:
        """Evict all other runs."""
        kept = {claim.run_id for claim in claims}
        self._held = {run_id: simulation for run_id, simulation in self._held.items() if run_id in kept}

    def evict(self, claim: Claim) -> None:
        """Evict a run that has ended, or whose simulation's state is in doubt."""
        self._held.pop(claim.run_id, None)
        self.end_session()

    def end_session(self) -> None:
        """End the computing process of the session, if it has one."""
        if self._computing is not None:
            self._computing.close()
            self._computing = None

    def close(self) -> None:
        """End all processes of bundles."""
        self.end_session()
        self._confined.close()
        self._weights.close()

    def _start_confined(
        self, claim: Claim, checkpoints: Checkpoints, is_lost: Callable[[], bool]
    ) -> ConfinedSimulation:
        self.end_session()
        self._computing = self._confined.start(claim, is_lost)
        checkpoints.restore(self._computing)
        return self._computing

    def _create(self, arm: Arm, claim: Claim) -> Simulation:
        return self._create_simulation(
            arm.spec,
            claim.seed,
            arm=claim.arm,
            device=self._device,
            storage=self._storage,
            weights_dir=self._weights.folder_for(claim) if arm.spec.weights_files else None,
            arms=self._facts,
            choice=EngineChoice.of(claim.provenance.get(ENGINE_CHOICE)),
            memory_divisor=MEMORY_DIVISOR**claim.shortages,
        )

    def _arms_of(self, claim: Claim) -> list[Arm]:
        """Arms of the run's experiment."""
        if self._document != claim.spec:
            spec = ExperimentSpec.model_validate(claim.spec)
            self._arms, self._facts = spec.arms(), facts_about(spec)
            self._kinds = [batch_key(arm.spec) for arm in self._arms]
            self._document, self._held = claim.spec, {}
        return self._arms
