"""Fixtures shared by the tests of engines."""

from collections.abc import Iterator

import pytest
import torch

from fedcore.models.imported import Imported


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def factories_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows models by import path, such as those of `tests.models.factories`."""
    monkeypatch.setattr(Imported, "check_allowed", lambda *_: None)
