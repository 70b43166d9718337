"""The Python client of a FedQ service.

`AsyncClient` has the same calls for asyncio: `await client.submit("demo")`,
`async for event in client.stream(id)`. In a notebook, experiments, results and figures show
themselves.

from fedq.client import Client

with Client() as client:
    experiment = client.submit("demo")
    client.wait(experiment.id, progress=True)
    print(client.results(experiment.id).to_pandas())
"""

from fedcore.platform.access import Scope
from fedq.client.client import AsyncClient, Client
from fedq.client.errors import (
    ConflictError,
    ExportError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    ServiceUnavailableError,
    ServiceUnreachableError,
    TooManyRequestsError,
    UnreadableDataError,
    UnreadableSpecificationError,
)
from fedq.errors import ClientError, MissingPackageError
from fedq.figures.style import Figure
from fedq.results.frames import Frame
from fedq.schemas import Comparison, Experiment, KeyRequest, Results

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
    "ServiceUnavailableError",
    "ServiceUnreachableError",
    "TooManyRequestsError",
    "UnreadableDataError",
    "UnreadableSpecificationError",
]
