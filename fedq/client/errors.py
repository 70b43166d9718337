"""Exceptions of the client."""

from http import HTTPStatus

import httpx
from pydantic import ValidationError

from fedq.errors import ClientError
from fedq.schemas import Flaw, ProblemDetails


class UnreadableSpecificationError(ClientError):
    """The specification cannot be read: missing file, invalid JSON or YAML, or values that are not
    serialisable as JSON.
    """


class UnreadableDataError(ClientError):
    """The data set cannot be read: missing file, or unsupported arrays."""


class ExportError(ClientError):
    """The export failed."""


class ServiceUnreachableError(ClientError):
    """The service did not respond, even to repeated requests."""


class ServiceError(ClientError):
    """The service returned an error (RFC 9457)."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        """The error of the service."""

    @property
    def flaws(self) -> list[Flaw]:
        """Errors of individual fields, with JSON pointers."""
        return self.problem.errors


class InvalidRequestError(ServiceError):
    """The specification or another part of the request is not valid; `flaws` lists the fields."""


class NotAllowedError(ServiceError):
    """The API key is missing, unknown or not permitted to do this."""


class TooManyRequestsError(ServiceError):
    """The rate limit of the API key was exceeded, even after waiting as requested."""


class ServiceUnavailableError(ServiceError):
    """The service, or a proxy before it, answered that it is unavailable (502, 503 or 504), even after
    repeated requests.
    """


class NotFoundError(ServiceError):
    """Experiment, run, preset, data set or file not found."""


class ConflictError(ServiceError):
    """Conflict with the current state of the experiment, or of experiments that use the data
    set.
    """


KINDS: dict[int, type[ServiceError]] = {
    HTTPStatus.BAD_REQUEST: InvalidRequestError,
    HTTPStatus.UNAUTHORIZED: NotAllowedError,
    HTTPStatus.FORBIDDEN: NotAllowedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidRequestError,
    HTTPStatus.REQUEST_URI_TOO_LONG: InvalidRequestError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidRequestError,
    HTTPStatus.TOO_MANY_REQUESTS: TooManyRequestsError,
    HTTPStatus.BAD_GATEWAY: ServiceUnavailableError,
    HTTPStatus.SERVICE_UNAVAILABLE: ServiceUnavailableError,
    HTTPStatus.GATEWAY_TIMEOUT: ServiceUnavailableError,
}


def make_refusal(status: HTTPStatus, detail: str) -> ServiceError:
    """Return the exception for a request that is not sent, since the answer is known."""
    problem = ProblemDetails(
        type="about:blank", title=status.phrase, status=status, detail=detail, instance="", errors=[]
    )
    return KINDS[status](problem)


def error_of(response: httpx.Response) -> ServiceError:
    """Return the exception for an error response that has been read, by its status."""
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
            detail=(
                f"{response.url.copy_with(query=None)} returned {response.status_code}"
                f" {response.reason_phrase}, which is not a response of FedQ"
            ),
            instance=response.url.path,
            errors=[],
        )
