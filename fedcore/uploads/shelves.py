"""Where kept data sets lie: in a folder of this machine, or in the storage of the service."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from fedcore.errors import DataUnavailableError, NotFoundError
from fedcore.spec.uploaded import Uploaded
from fedcore.storage import Storage


class Shelf(Protocol):
    """Opens kept data sets; equal shelves hold the same."""

    def __hash__(self) -> int: ...

    def open(self, dataset: Uploaded) -> BinaryIO:
        """The file of `dataset`; raises DataUnavailableError."""
        ...


@dataclass(frozen=True)
class LocalShelf:
    """A folder with a file per data set, named by its digest."""

    folder: Path

    def path(self, digest: str) -> Path:
        """Where the data set with this digest lies."""
        return self.folder / f"{digest}.npz"

    def open(self, dataset: Uploaded) -> BinaryIO:
        """The file of `dataset`."""
        path = self.path(dataset.known.digest)
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise DataUnavailableError(f"there is no {path}; keep the data set here by fedcore.uploads.local.keep(file)") from error


@dataclass(frozen=True)
class StoredShelf:
    """The storage that service and workers share."""

    storage: Storage

    def open(self, dataset: Uploaded) -> BinaryIO:
        """The file of `dataset`."""
        if dataset.id is None:
            raise DataUnavailableError("the data set was never uploaded: its specification has no id")
        try:
            return self.storage.open(key(dataset.id, dataset.known.digest))
        except NotFoundError as error:
            raise DataUnavailableError(f"the uploaded data set {dataset.id} is not in the storage; it may have been deleted") from error


def key(dataset_id: str, digest: str) -> str:
    """Where a data set is stored. By its id too: what deletes the file of one never deletes that of a later upload of the same content."""
    return f"datasets/{dataset_id}-{digest}.npz"
