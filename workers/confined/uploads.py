"""Uploaded data sets that arms train on, copied to where the sessions of their sandbox read them."""

import shutil
from collections.abc import Iterable

from fedcore.data.base import DatasetSpec
from fedcore.data.uploaded import Uploaded
from fedcore.platform.storage import Storage
from fedcore.platform.uploads.dataset_storage import SharedDatasetStorage
from workers.confined.sandbox import Sandbox


def copy_datasets(sandbox: Sandbox, storage: Storage, datasets: Iterable[DatasetSpec]) -> None:
    """Copy the uploaded ones among the data sets from the storage; raises DataUnavailableError and
    StorageError.

    `datasets` are the data sets of arms, which the service has looked up for the owner of the
    experiment: what a bundle's own fields name is not copied.
    """
    shared = SharedDatasetStorage(storage)
    for dataset in datasets:
        if not isinstance(dataset, Uploaded):
            continue
        path = sandbox.uploads / f"{dataset.known.digest}.npz"
        if not path.exists():
            partial = path.with_suffix(".partial")
            with shared.open(dataset) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
            partial.rename(path)
