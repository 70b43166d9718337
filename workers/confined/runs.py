"""Runs with a code bundle, as a worker starts them in the sandbox of their experiment."""

from collections.abc import Callable
from typing import Any

from fedcore import bundles
from fedcore.data.uploaded import Uploaded
from fedcore.errors import DataUnavailableError, ResourceNotFoundError, StorageError
from fedcore.platform.storage import Storage, read, save_as
from fedcore.platform.store.leases import Claim
from fedcore.platform.uploads.dataset_storage import SharedDatasetStorage
from fedcore.settings import Settings
from fedcore.spec import stored_arms, stored_spec, sweep
from fedcore.spec.code import CodeBundle
from workers.confined.sandbox import Sandbox
from workers.confined.simulation import ConfinedSimulation
from workers.weights import UploadedWeights


def bundle_of(claim: Claim) -> CodeBundle | None:
    """The bundle that a run needs, if any."""
    found = claim.spec.get("code")
    return None if found is None else CodeBundle.model_validate(found)


class ConfinedRuns:
    """The sandbox of the latest experiment that needed one."""

    def __init__(self, settings: Settings, device: str, storage: Storage, weights: UploadedWeights) -> None:
        """Bundles and uploaded data sets come from `storage`."""
        self._weights = weights
        self._settings, self._device, self._storage = settings, device, storage
        self._sandbox: Sandbox | None = None
        self._experiment = ""
        self._datasets: list[Uploaded] = []
        self._made_with: dict[str, Any] = {}

    def start(self, claim: Claim, is_lost: Callable[[], bool]) -> ConfinedSimulation:
        """The simulation of a run before its first round, in a computing process of its own, which ends
        once the claim `is_lost`.

        Raises UserCodeError, SpecificationError, DataUnavailableError, StorageError, BusyError,
        StaleLeaseError, and ConfinementError where there can be no sandbox.
        """
        sandbox = self._sandbox_of(claim)
        self._weights.copy_to(sandbox.uploads, claim)
        self._copy_datasets(sandbox)
        round_s = self._settings.code_round_seconds
        return ConfinedSimulation(sandbox, claim, self._device, round_s, self._made_with, is_lost)

    def keep_for(self, experiment_id: str) -> None:
        """End the sandbox unless it is of this experiment."""
        if experiment_id != self._experiment:
            self.close()

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox, self._experiment = None, ""

    def _sandbox_of(self, claim: Claim) -> Sandbox:
        self.keep_for(claim.experiment_id)
        if self._sandbox is None or not self._sandbox.alive:
            self.close()
            code = bundle_of(claim)
            assert code is not None
            archive = self._archive(code)
            self._sandbox = Sandbox(archive, self._settings, self._device)
            self._experiment = claim.experiment_id
            self._datasets = _uploads_of_arms(claim.spec)
            self._made_with = {
                "digest": code.digest,
                "files": [file.name for file in bundles.list_files(archive)],
                "confinement": self._sandbox.confinement,
            }
        return self._sandbox

    def _copy_datasets(self, sandbox: Sandbox) -> None:
        """Copy the uploads that arms train on to where the sessions of their sandbox read them.

        The service has looked them up for the owner of the experiment: what a bundle's own fields name is
        not copied.
        """
        uploads = SharedDatasetStorage(self._storage)
        for dataset in self._datasets:
            path = sandbox.uploads / f"{dataset.known.digest}.npz"
            if not path.exists():
                save_as(uploads.open(dataset), path)

    def _archive(self, code: CodeBundle) -> bytes:
        if code.id is None:
            raise DataUnavailableError("the bundle was never uploaded: its specification has no id")
        try:
            archive = read(self._storage, bundles.storage_key(code.id, code.digest))
        except ResourceNotFoundError as error:
            raise DataUnavailableError(
                f"the bundle {code.id} is not in the storage; it may have been deleted"
            ) from error
        if bundles.digest(archive) != code.digest:
            raise StorageError(f"the stored bundle {code.id} is damaged: its bytes have another digest")
        return archive


def _uploads_of_arms(document: dict[str, Any]) -> list[Uploaded]:
    specs = [stored_spec(document)]
    if "problem" in sweep.fields(specs[0].sweep):
        specs = [arm.spec for arm in stored_arms(document)]
    return [spec.problem.dataset for spec in specs if isinstance(spec.problem.dataset, Uploaded)]
