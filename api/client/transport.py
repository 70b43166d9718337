"""Requests to the service: where it is, who asks, patience with a service that is away for a moment."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from api.client.errors import ServiceUnreachableError, error_of

TIMEOUT_S = 30.0
FIRST_PAUSE_S = 0.2
AWAY = frozenset({502, 503, 504})
"""What a proxy answers for a service that is starting, stopping or gone."""

TOO_MANY = frozenset({429})
LONGEST_WAIT_S = 30.0

Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Page(Protocol[Item_co]):
    """A page of a listing."""

    @property
    def items(self) -> Sequence[Item_co]:
        """What is on it."""

    @property
    def next(self) -> str | None:
        """The cursor of the next page; None on the last one."""


class Transport:
    """Carries requests to one service. Every request that FedQ knows is safe to repeat, so one without an answer is."""

    def __init__(self, url: str, api_key: str | None, retries: int) -> None:
        """Connects at the first request; raises ServiceUnreachableError for what is no address."""
        self.url = url.rstrip("/")
        self._retries = retries
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S, trust_env=not _is_loopback(self.url))
        except httpx.InvalidURL as error:
            raise ServiceUnreachableError(f"{url!r} is not the address of a service: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The service's answer, read; raises ServiceError or ServiceUnreachableError."""
        with self.stream(method, path, **options) as response:
            response.read()
        return response

    def send(self, model: type[Model], method: str, path: str, **options: Any) -> Model:
        """The service's answer, parsed."""
        response = self.request(method, path, **options)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise error_of(response) from error

    def read(self, model: type[Model], path: str, **params: Any) -> Model:
        """What stands at `path`; a parameter that is None is left out."""
        return self.send(model, "GET", path, params=given(**params))

    def download(self, source: str, path: Path, **params: Any) -> Path:
        """Write what stands at `source` to `path`, which is there once it is whole; a parameter that is None is left out."""
        partial = path.with_name(f".{path.name}.partial")
        with self.stream("GET", source, params=given(**params)) as response, partial.open("wb") as file:
            file.writelines(response.iter_bytes())
        return partial.replace(path)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """The service's answer, its body yet to be read; raises ServiceError or ServiceUnreachableError, in the block too."""
        request = self._http.build_request(method, path, **options)
        try:
            response = self._send(request)
            try:
                if response.is_error:
                    response.read()
                    raise self._away(error_of(response)) if response.status_code in AWAY else error_of(response)
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self._away(error) from error

    def _send(self, request: httpx.Request) -> httpx.Response:
        for retry in range(self._retries):
            try:
                response = self._http.send(request, stream=True)
            except httpx.TransportError:
                time.sleep(FIRST_PAUSE_S * 2**retry)
                continue
            if response.status_code not in AWAY | TOO_MANY:
                return response
            response.close()
            time.sleep(max(FIRST_PAUSE_S * 2**retry, _asked_to_wait_s(response)))
        return self._http.send(request, stream=True)

    def _away(self, error: Exception) -> ServiceUnreachableError:
        return ServiceUnreachableError(f"no answer from {self.url}: {error}; `fedq up` starts a service here, FEDQ_URL names another")


def walk(page_at: Callable[[str | None], Page[Item]]) -> Iterator[Item]:
    """The items of all pages, fetched as they are needed."""
    page = page_at(None)
    yield from page.items
    while page.next is not None:
        page = page_at(page.next)
        yield from page.items


def given(**params: Any) -> dict[str, Any]:
    """The parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}


def _asked_to_wait_s(response: httpx.Response) -> float:
    """How long the service asks to wait, as far as it makes sense to."""
    asked = response.headers.get("Retry-After", "")
    return min(float(asked), LONGEST_WAIT_S) if response.status_code in TOO_MANY and asked.isdecimal() else 0.0


def _is_loopback(url: str) -> bool:
    """Whether `url` is on this machine, where no proxy is to be asked."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
