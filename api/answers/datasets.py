"""Uploaded data sets as answers."""

from fedcore.platform.store.tables import DatasetRecord
from fedcore.spec.dataset import UploadedContent
from fedq.schemas import ClientSizes, Dataset


def dataset_answer(record: DatasetRecord) -> Dataset:
    """A data set."""
    return Dataset(
        id=record.id,
        name=record.name,
        owner=record.owner,
        client_sizes=ClientSizes(**record.client_sizes) if record.client_sizes else None,
        size_bytes=record.size_bytes,
        created_at=record.created_at,
        **UploadedContent.model_validate(record.content).model_dump(mode="json"),
    )
