"""A worker is told that something waits; nobody waits for that."""

import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from redis import Redis

from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.access import bearer, key_for
from tests.support.asgi import application, calling
from tests.support.brokers import connect
from tests.support.live import serving
from tests.support.polling import eventually
from workers.celery_app import WAKEUP_TASK


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The URL of a broker that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


@pytest.fixture
def migrated(sqlite_template: Path, tmp_path: Path) -> str:
    """A database of its own."""
    copy = tmp_path / "fedq.db"
    copy.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{copy}"


def test_every_way_to_queue_runs_wakes_the_workers_of_the_queue(
    tmp_path: Path, migrated: str, broker_url: str
) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url=migrated, broker_url=broker_url)
    with calling(application(settings), key_for(migrated)) as http, connect(broker_url) as broker:
        made = submit_over_http(http, {**TINY, "execution": {"queue": "gpu"}})
        for call, count in (("pause", 1), ("resume", 2), ("cancel", 2), ("retry", 3)):
            assert http.post(f"/v1/experiments/{made['id']}/{call}").status_code == 200
            eventually(partial(_has_messages, broker, count))
        message = json.loads(broker.lindex("fedq.gpu", 0) or "")
    assert message["headers"]["task"] == WAKEUP_TASK
    # By whose clock? A worker whose own is fast would throw all of them away.
    assert message["headers"]["expires"] is None


def _has_messages(broker: Redis, count: int) -> bool:
    return broker.llen("fedq.gpu") == count


def test_a_dry_run_nudges_nobody(tmp_path: Path, migrated: str, broker_url: str) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url=migrated, broker_url=broker_url)
    with calling(application(settings), key_for(migrated)) as http, connect(broker_url) as broker:
        http.post("/v1/experiments?dry_run=true", json=TINY)
        assert broker.dbsize() == 0


@pytest.mark.slow
def test_a_broker_that_hangs_holds_up_neither_a_submission_nor_anything_else(
    tmp_path: Path, migrated: str, silent_broker: str
) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url=migrated, broker_url=silent_broker)
    with (
        serving(application(settings)) as url,
        httpx.Client(base_url=url, headers=bearer(key_for(migrated))) as http,
    ):
        began = time.monotonic()
        for _ in range(60):
            submit_over_http(http)
        assert time.monotonic() - began < 60, (
            "publishing gives up after 2 s, so one after another they would take 120"
        )
        assert len(http.get("/v1/experiments", params={"limit": 100}).json()["items"]) == 60
