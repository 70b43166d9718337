"""A client of the running service."""

from collections.abc import Iterator

import pytest

from fedq.client import Client
from tests.support.service import Service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as client:
        yield client
