"""A worker's simulations: the last ones stay in memory, so that going on with their runs costs no
loading.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path

from fedcore import ExperimentSpec
from fedcore.data.user_datasets import DatasetStorage
from fedcore.engine.choice import EngineChoice
from fedcore.platform.out_of_memory import MEMORY_DIVISOR
from fedcore.platform.store.claim import Claim
from fedcore.platform.store.reproductions import ENGINE_CHOICE
from fedcore.platform.store.tables import Document
from fedcore.simulation.simulation import Simulation, batch_key
from fedcore.spec.experiment import Arm
from workers.checkpoints import Checkpoints


class SimulationCache:
    """The simulations of the runs at hand, all of one experiment, and its arms."""

    def __init__(self, device: str, data_dir: Path, shelf: DatasetStorage) -> None:
        """Compute on `device`; published data sets are under `data_dir`, users' own on `shelf`."""
        self._device, self._data_dir, self._shelf = device, data_dir, shelf
        self._document: Document = {}
        self._arms: list[Arm] = []
        self._kinds: list[Hashable] = []
        self._held: dict[str, Simulation] = {}

    def get(self, claim: Claim, checkpoints: Checkpoints) -> Simulation:
        """The run's simulation after round `claim.done`.

        Raises SpecificationError or DataUnavailableError when the run cannot be carried out here.
        """
        arm = self._of(claim)[claim.arm]
        held = self._held.pop(claim.run_id, None)
        if held is None or held.round != claim.done or held.spec != arm.spec:
            held = self._made(arm, claim)
            checkpoints.restore(held)
        self._held[claim.run_id] = held
        return held

    def compatible_arms(self, claim: Claim) -> list[int]:
        """The arms of the run's experiment whose runs are worth training together with it."""
        return [arm.index for arm in self._of(claim) if self._kinds[arm.index] == self._kinds[claim.arm]]

    def start(self, claim: Claim) -> None:
        """A turn begins with this run.

        Where it was held, its gang may come again, else the others only take memory.
        """
        if claim.run_id not in self._held:
            self._held = {}

    def retain(self, claims: Sequence[Claim]) -> None:
        """Let go of all others."""
        kept = {claim.run_id for claim in claims}
        self._held = {run_id: simulation for run_id, simulation in self._held.items() if run_id in kept}

    def evict(self, claim: Claim) -> None:
        """Let go of a simulation: its run has ended, or its state is in doubt."""
        self._held.pop(claim.run_id, None)

    def _made(self, arm: Arm, claim: Claim) -> Simulation:
        return Simulation(
            arm.spec,
            claim.seed,
            arm=claim.arm,
            device=self._device,
            data_dir=self._data_dir,
            shelf=self._shelf,
            recorded=EngineChoice.of(claim.provenance.get(ENGINE_CHOICE)),
            memory_divisor=MEMORY_DIVISOR**claim.shortages,
        )

    def _of(self, claim: Claim) -> list[Arm]:
        """The arms of the run's experiment."""
        if self._document != claim.spec:
            self._arms = ExperimentSpec.model_validate(claim.spec).arms()
            self._kinds = [batch_key(arm.spec) for arm in self._arms]
            self._document, self._held = claim.spec, {}
        return self._arms
