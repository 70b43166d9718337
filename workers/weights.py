"""Uploaded pretrained weights: copied from the storage to where runs read them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedcore.data.digest_files import file_name
from fedcore.errors import DataUnavailableError, ResourceNotFoundError
from fedcore.platform.storage import Storage
from fedcore.platform.store import Database, weights
from fedcore.platform.store.leases import Claim


class UploadedWeights:
    """Copies of the weights that the latest experiment uses.

    An experiment gets what was recorded as its use, so an upload of another owner is not read.
    """

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database, self._storage = database, storage
        self._experiment = ""
        self._folder: TemporaryDirectory[str] | None = None

    def folder_for(self, claim: Claim) -> Path | None:
        """Folder with the uploads among the weights of an experiment; None if it has none.

        Raises StorageError, and DataUnavailableError for a file that was removed.
        """
        if not any(_digests(claim.spec)):
            return None
        if self._folder is None or self._experiment != claim.experiment_id:
            self.close()
            self._folder = TemporaryDirectory(prefix="fedq-weights-")
            self._experiment = claim.experiment_id
        self.copy_to(Path(self._folder.name), claim)
        return Path(self._folder.name)

    def copy_to(self, folder: Path, claim: Claim) -> None:
        """Copy the uploads among the weights of an experiment to `folder`, as `folder_for`."""
        for digest in sorted(set(_digests(claim.spec))):
            path = folder / file_name(digest, "safetensors")
            if path.exists():
                continue
            with self._database.reading() as session:
                key = weights.stored_for(session, claim.experiment_id, digest)
            if key is not None:
                self._copy(key, path)

    def close(self) -> None:
        """Remove the copies."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _copy(self, key: str, path: Path) -> None:
        partial = path.with_suffix(".partial")
        try:
            with self._storage.open(key) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
        except ResourceNotFoundError as error:
            raise DataUnavailableError(f"the uploaded weights {key} are not in the storage") from error
        partial.rename(path)


def _digests(value: Any) -> Iterator[str]:
    """Digests of weights anywhere in a document."""
    if isinstance(value, dict):
        named = value.get("weights")
        if isinstance(named, str) and named.startswith("sha256:"):
            yield named
        for inner in value.values():
            yield from _digests(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _digests(inner)
