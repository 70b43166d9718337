"""Where kept data sets lie: in a folder of this machine, or in the storage of the service."""

from dataclasses import dataclass
from typing import BinaryIO

from fedcore.data.uploaded import StoredDataset, Uploaded
from fedcore.errors import DataUnavailableError, ResourceNotFoundError
from fedcore.platform.storage import Storage


@dataclass(frozen=True)
class SharedDatasetStorage:
    """The storage that service and workers share."""

    storage: Storage

    def open(self, dataset: StoredDataset) -> BinaryIO:
        """The file of `dataset`."""
        if not isinstance(dataset, Uploaded) or dataset.id is None:
            raise DataUnavailableError("the data set was never uploaded: its specification has no id")
        try:
            return self.storage.open(storage_key(dataset.id, dataset.known.digest))
        except ResourceNotFoundError as error:
            raise DataUnavailableError(
                f"the uploaded data set {dataset.id} is not in the storage; it may have been deleted"
            ) from error


def storage_key(dataset_id: str, digest: str) -> str:
    """Where a data set is stored.

    By its id too: what deletes the file of one never deletes that of a later upload of the same
    content.
    """
    return f"datasets/{dataset_id}-{digest}.npz"
