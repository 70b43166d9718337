"""Limits: how often a key may ask, and how large an experiment may be.

Each refusal says which setting it is.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from fastapi import FastAPI

from api.http.rate_limit import RateLimiter, _LocalBuckets
from fedcore.errors import RateError
from fedcore.platform.storage import open_storage
from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.platform.uploads.files import arrays, npz
from tests.support.access import bearer, key_for
from tests.support.asgi import application, calling
from tests.support.brokers import connect
from tests.support.slowness import slowed

RATE, BURST = 0.5, 3


@contextmanager
def _narrow(settings: Settings, **limits: object) -> Iterator[httpx.Client]:
    """A client of a service with these settings."""
    with calling(application(settings.model_copy(update=limits)), key_for(settings.database)) as client:
        yield client


def test_a_bucket_lets_a_burst_through_and_then_a_steady_rate() -> None:
    buckets = _LocalBuckets(2.0, 3)
    assert [buckets.take("a", 10.0) for _ in range(4)] == [(2, 0), (1, 0), (0, 0), (0, 0.5)]
    assert buckets.take("b", 10.0) == (2, 0)
    assert buckets.take("a", 10.25) == (0.5, 0.25)
    assert [buckets.take("a", 10.5), buckets.take("a", 10.5)] == [(0, 0), (0, 0.5)]
    assert [buckets.take("a", 99.0) for _ in range(4)] == [(2, 0), (1, 0), (0, 0), (0, 0.5)]


def test_a_key_that_asks_too_often_is_told_when_to_ask_again_and_others_are_not_held_up(
    settings: Settings,
) -> None:
    with _narrow(settings, rate_limit=RATE) as http:
        answers = [http.get("/v1/me") for _ in range(BURST + 1)]
        assert [answer.status_code for answer in answers] == [200] * BURST + [429]
        assert (answers[-1].headers["retry-after"], answers[-1].json()["type"]) == (
            "2",
            "urn:fedq:problem:rate",
        )
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"default";q=3;w=6'}
        assert [answer.headers["ratelimit"].partition(";t=")[0] for answer in answers] == [
            f'"default";r={left}' for left in (2, 1, 0, 0)
        ]
        assert answers[0].headers["ratelimit"].endswith(";t=2")
        assert "(FEDQ_RATE_LIMIT)" in answers[-1].json()["detail"]
        assert http.get("/v1/me", headers=bearer(key_for(settings.database, "ann"))).status_code == 200
        assert http.get("/healthz").status_code == 200


def test_a_limit_of_zero_is_none(settings: Settings) -> None:
    with _narrow(settings, rate_limit=0) as http:
        assert [http.get("/v1/me").status_code for _ in range(3)] == [200] * 3


@pytest.fixture
def tcp_redis(tmp_path: Path) -> Iterator[str]:
    """A Redis that processes on several machines could share."""
    from tests.support.brokers import PACKAGES, _binary
    from tests.support.polling import eventually
    from tests.support.processes import served

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [str(_binary(*PACKAGES["redis"])), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    url = f"redis://127.0.0.1:{port}/0"
    with served(command, tmp_path / "redis.log", cwd=tmp_path):
        eventually(lambda: _answers(url))
        yield url


def _answers(url: str) -> bool:
    from redis.exceptions import ConnectionError as NotThereError

    try:
        with connect(url) as client:
            return bool(client.ping())
    except NotThereError:
        return False


async def _taken(settings: Settings, processes: int, each: int) -> int:
    """How many of the requests that `processes` get for one key are let through."""
    rates = [RateLimiter(settings) for _ in range(processes)]
    taken = 0
    for one in rates * each:
        with suppress(RateError):
            await one.take("key_1", {})
            taken += 1
    for one in rates:
        await one.close()
    return taken


def test_processes_that_share_a_redis_share_the_buckets(tcp_redis: str) -> None:
    settings = Settings(_env_file=None, broker_url=tcp_redis, rate_limit=0.01)
    assert asyncio.run(_taken(settings, processes=3, each=4)) == 1


def test_without_that_redis_each_process_holds_the_rate_alone() -> None:
    settings = Settings(_env_file=None, broker_url="redis://127.0.0.1:1/0", rate_limit=0.01)
    assert asyncio.run(_taken(settings, processes=2, each=8)) == 2


@pytest.mark.skipif(redis.VERSION[0] < 7, reason="its connections begin with fewer answers, in time together")
def test_a_redis_that_answers_slowly_is_taken_to_be_away(tcp_redis: str) -> None:
    """Each of its answers is in time; all that a connection begins with are not."""
    door = socket.create_server(("127.0.0.1", 0))
    url, target = f"redis://127.0.0.1:{door.getsockname()[1]}/0", urlsplit(tcp_redis)
    settings = Settings(_env_file=None, broker_url=url, rate_limit=0.01)
    with slowed(door, lambda: socket.create_connection((str(target.hostname), target.port)), pause_s=0.2):
        assert asyncio.run(_taken(settings, processes=2, each=8)) == 2


def test_a_key_is_told_what_it_may_have_and_has_and_refused_more(
    app: FastAPI, settings: Settings, http: httpx.Client
) -> None:
    limits = {"max_waiting_runs": 2, "max_stored_bytes": 10, "max_compute_seconds": 3600}
    key = http.post("/v1/keys", json={"owner": "ann"} | limits).json()
    with calling(app, key["key"]) as ann:
        submit_over_http(ann)
        refused = ann.post("/v1/experiments", json=TINY | {"seeds": [0, 1]})
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:fedq:problem:quota")
        assert ann.post("/v1/datasets", params={"name": "mine"}, content=npz(arrays())).status_code == 403
        assert ann.get("/v1/datasets").json()["items"] == []
        assert list(open_storage(settings.storage).keys("datasets")) == []
        me = ann.get("/v1/me").json()
    assert {name: me["key"][name] for name in limits} == limits
    assert me["usage"] == {"waiting_runs": 1, "running_runs": 0, "stored_bytes": 0, "compute_seconds": 0.0}
