"""The Python client of a FedQ service.

`AsyncClient` has the same calls for asyncio: `await client.submit("demo")`, `async for event in client.stream(id)`. In a notebook,
experiments, results and figures show themselves.

from api.client import Client

with Client() as client:
    experiment = client.submit("demo")
    client.wait(experiment.id, progress=True)
    print(client.results(experiment.id).to_pandas())
"""

from api.client.client import AsyncClient, Client
from api.client.errors import (
    ClientError,
    ConflictError,
    ExportError,
    InvalidRequestError,
    MissingPackageError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    ServiceUnreachableError,
    TooManyRequestsError,
    UnreadableDataError,
    UnreadableSpecificationError,
)
from api.client.models import Experiment, Figure
from api.client.results import Comparison, Frame, Results
from api.schemas import KeyRequest
from fedcore.platform.access import Scope

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Comparison",
    "ConflictError",
    "Experiment",
    "ExportError",
    "Figure",
    "Frame",
    "InvalidRequestError",
    "KeyRequest",
    "MissingPackageError",
    "NotAllowedError",
    "NotFoundError",
    "Results",
    "Scope",
    "ServiceError",
    "ServiceUnreachableError",
    "TooManyRequestsError",
    "UnreadableDataError",
    "UnreadableSpecificationError",
]
