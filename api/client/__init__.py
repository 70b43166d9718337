"""The Python client of a FedQ service.

from api.client import Client

with Client() as client:
    experiment = client.submit("demo")
    client.wait(experiment.id, progress=True)
    print(client.results(experiment.id).to_pandas())
"""

from api.client.client import Client
from api.client.errors import (
    ClientError,
    ConflictError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    ServiceUnreachableError,
    TooManyRequestsError,
    UnreadableDataError,
    UnreadableSpecificationError,
)
from api.client.results import Frame, Results
from api.schemas import KeyRequest
from fedcore.access import Scope

__all__ = [
    "Client",
    "ClientError",
    "ConflictError",
    "Frame",
    "InvalidRequestError",
    "KeyRequest",
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
