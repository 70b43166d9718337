"""What can go wrong between a client and the service."""

from http import HTTPStatus

import httpx
from pydantic import ValidationError

from fedq.schemas import Flaw, ProblemDetails


class ClientError(Exception):
    """Anything that the client cannot do."""


class UnreadableSpecificationError(ClientError):
    """A specification that is no document: no such file, neither JSON nor YAML, or with values that JSON cannot carry."""


class UnreadableDataError(ClientError):
    """A data set that cannot be sent: no such file, or arrays that no file can hold."""


class MissingPackageError(ClientError):
    """A package that this needs is not installed; the message names the extra of FedQ that brings it."""


class ExportError(ClientError):
    """Where an experiment was to be exported to does not take it."""


class ServiceUnreachableError(ClientError):
    """No answer came, even after trying again."""


class ServiceError(ClientError):
    """The service answered with a problem (RFC 9457)."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        """What the service said."""

    @property
    def flaws(self) -> list[Flaw]:
        """Each thing that is wrong with the request, with its JSON pointer."""
        return self.problem.errors


class InvalidRequestError(ServiceError):
    """The specification, or another part of the request, is not valid; `flaws` says where."""


class NotAllowedError(ServiceError):
    """The API key is missing, unknown, or does not allow this."""


class TooManyRequestsError(ServiceError):
    """The API key was used too often, even after waiting as long as the service asked."""


class NotFoundError(ServiceError):
    """There is no such experiment, run, preset, data set or file."""


class ConflictError(ServiceError):
    """Not possible in the present state of the experiment, or of those that use the data set."""


KINDS: dict[int, type[ServiceError]] = {
    HTTPStatus.BAD_REQUEST: InvalidRequestError,
    HTTPStatus.UNAUTHORIZED: NotAllowedError,
    HTTPStatus.FORBIDDEN: NotAllowedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidRequestError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidRequestError,
    HTTPStatus.TOO_MANY_REQUESTS: TooManyRequestsError,
}


def error_of(response: httpx.Response) -> ServiceError:
    """The error that a response, which has been read, reports, as narrow as its status allows."""
    return KINDS.get(response.status_code, ServiceError)(_problem(response))


def _problem(response: httpx.Response) -> ProblemDetails:
    try:
        return ProblemDetails.model_validate_json(response.content)
    except ValidationError:
        # Not from the service itself: a proxy in between, or another server at this address.
        return ProblemDetails(
            type="about:blank",
            title=response.reason_phrase,
            status=response.status_code,
            detail=f"{response.url} answered {response.status_code} {response.reason_phrase}, and not as FedQ does",
            instance=response.url.path,
            errors=[],
        )
