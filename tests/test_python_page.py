"""docs/python.md: its programs run."""

import re
import threading
from pathlib import Path

import pytest

from api.client import AsyncClient, Client
from fedcore.settings import settings
from tests.api.histories import carry_out
from tests.support.polling import eventually
from tests.support.service import Service

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_programs_of_the_page_run(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQ_URL", service.url)
    monkeypatch.setenv("FEDQ_API_KEY", service.key)
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    worker = threading.Thread(target=_work, args=(service, 4))
    worker.start()
    for program in PROGRAMS:
        exec(compile(program, "docs/python.md", "exec"), {})
    worker.join()
    settings.cache_clear()
    assert {file.name for file in tmp_path.iterdir()} == {"curve.svg", "model.safetensors"}


def test_the_calls_that_the_page_names_are_there() -> None:
    for name in [*re.findall(r"client\.(\w+)\(", PAGE), "dry_run", "stream"]:
        assert callable(getattr(Client, name))
        assert callable(getattr(AsyncClient, name))


def _work(service: Service, count: int) -> None:
    """Play so many runs, each when it is there."""
    with Client(service.url, service.key) as client:
        for _ in range(count):
            eventually(lambda: sum(queue.queued for queue in client.queues().items) > 0)
            carry_out(service.database, service.storage, 1)
