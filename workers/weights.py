"""Uploaded files of pretrained networks: copied from the storage to where runs read them."""

from pathlib import Path
from tempfile import TemporaryDirectory

from fedcore.data.digest_files import file_name
from fedcore.errors import DataUnavailableError, ResourceNotFoundError
from fedcore.platform.storage import Storage, save_as
from fedcore.platform.store import Database, weights
from fedcore.platform.store.leases import Claim
from fedcore.platform.uploads.weights import SUFFIXES, storage_key


class UploadedWeights:
    """Copies of the weights, configurations and tokenizers that the latest experiment uses.

    An experiment gets what was recorded as its use, so an upload that its owner may not read is not copied.
    """

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database, self._storage = database, storage
        self._experiment = ""
        self._folder: TemporaryDirectory[str] | None = None

    def folder_for(self, claim: Claim) -> Path:
        """Folder with the uploads that an experiment uses.

        Raises StorageError, and DataUnavailableError for a file that was removed.
        """
        if self._folder is None or self._experiment != claim.experiment_id:
            self.close()
            self._folder = TemporaryDirectory(prefix="fedq-weights-")
            self._experiment = claim.experiment_id
        self.copy_to(Path(self._folder.name), claim)
        return Path(self._folder.name)

    def copy_to(self, folder: Path, claim: Claim) -> None:
        """Copy the uploads that an experiment uses to `folder`, as `folder_for`."""
        with self._database.reading() as session:
            used = [
                (storage_key(record.id, record.digest), file_name(record.digest, SUFFIXES[record.content]))
                for record in weights.used_by(session, claim.experiment_id)
            ]
        for key, name in used:
            if not (folder / name).exists():
                self._copy(key, folder / name)

    def close(self) -> None:
        """Remove the copies."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _copy(self, key: str, path: Path) -> None:
        try:
            save_as(self._storage.open(key), path)
        except ResourceNotFoundError as error:
            raise DataUnavailableError(f"the upload {key} is not in the storage") from error
