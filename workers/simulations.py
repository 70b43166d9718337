"""A worker's simulations: the last one stays in memory, so that going on with a run costs no loading."""

from pathlib import Path

from fedcore import ExperimentSpec
from fedcore.engine.choice import Choice
from fedcore.experiment import Simulation
from fedcore.spec.experiment import Arm
from fedcore.store.claim import Claim
from fedcore.store.tables import Document
from fedcore.uploads.shelves import Shelf
from workers.checkpoints import Checkpoints
from workers.outcome import ENGINE_CHOICE


class Simulations:
    """The simulation of the run at hand; holds one, and the arms of its experiment."""

    def __init__(self, device: str, data_dir: Path, shelf: Shelf) -> None:
        """Compute on `device`; published data sets are under `data_dir`, users' own on `shelf`."""
        self._device, self._data_dir, self._shelf = device, data_dir, shelf
        self._document: Document = {}
        self._arms: list[Arm] = []
        self._run_id: str | None = None
        self._simulation: Simulation | None = None

    def at(self, claim: Claim, checkpoints: Checkpoints) -> Simulation:
        """The run's simulation after round `claim.done`.

        Raises SpecificationError or DataUnavailableError when the run cannot be carried out here.
        """
        arm = self._arm(claim)
        held = self._simulation if self._run_id == claim.run_id else None
        self.forget()
        if held is None or held.round != claim.done or held.spec != arm.spec:
            held = self._made(arm, claim)
            checkpoints.restore(held)
        self._run_id, self._simulation = claim.run_id, held
        return held

    def forget(self) -> None:
        """Let go of the simulation: its run has ended, or its state is in doubt."""
        self._run_id = self._simulation = None

    def _made(self, arm: Arm, claim: Claim) -> Simulation:
        return Simulation(
            arm.spec,
            claim.seed,
            arm=claim.arm,
            device=self._device,
            data_dir=self._data_dir,
            shelf=self._shelf,
            recorded=Choice.of(claim.provenance.get(ENGINE_CHOICE)),
        )

    def _arm(self, claim: Claim) -> Arm:
        if self._document != claim.spec:
            self._arms = ExperimentSpec.model_validate(claim.spec).arms()
            self._document = claim.spec
        return self._arms[claim.arm]
