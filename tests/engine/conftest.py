"""Fixtures shared by the tests of engines."""

from collections.abc import Iterator

import pytest
import torch

from fedcore.settings import settings


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def factories_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allows models of `tests.models.factories` by import path."""
    monkeypatch.setenv("FEDQ_MODELS_ALLOWED", "tests.models.factories:*")
    settings.cache_clear()
    yield
    settings.cache_clear()
