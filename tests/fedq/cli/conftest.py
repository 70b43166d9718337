"""The command line in this process, talking to the running service."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from fedcore.settings import settings
from fedq.cli import main
from fedq.client import Client
from tests.support.service import Service


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


Fedq = Callable[..., Outcome]


@pytest.fixture
def fedq(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fedq]:
    """Carries out a command: `fedq("status", id)`."""
    monkeypatch.setenv("FEDQ_URL", service.url)
    monkeypatch.setenv("FEDQ_API_KEY", service.key)
    monkeypatch.setenv("COLUMNS", "160")
    settings.cache_clear()

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return Outcome(ended.value.code, *capsys.readouterr())

    yield call
    settings.cache_clear()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as client:
        yield client
