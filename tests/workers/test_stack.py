"""The embedded stack under faults of its own processes, and where it cannot start."""

import os
import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import psutil
import pytest

from api.client import Client
from tests.api.histories import TINY
from tests.support.commands import START_S, log_of, running_in, started, url_of
from tests.support.polling import eventually

pytestmark = pytest.mark.slow


def test_killed_children_are_started_again_and_no_request_is_refused_meanwhile(place: Path) -> None:
    with _stack(place) as supervisor, Client(url_of(place), retries=0) as client:
        before = _children(supervisor)
        os.kill(before["uvicorn"], signal.SIGKILL)
        assert list(client.experiments()) == []
        for name in ("workers.worker", "workers.reconciler", "valkey-server"):
            os.kill(before[name], signal.SIGKILL)
        eventually(lambda: _children(supervisor).keys() == before.keys(), timeout_s=START_S)
        assert not set(_children(supervisor).values()) & set(before.values())
        assert client.wait(client.submit(TINY).id, timeout_s=START_S).status == "succeeded"


def test_nothing_outlives_a_killed_supervisor_and_the_next_one_starts_in_its_place(place: Path) -> None:
    with _stack(place) as supervisor:
        url_of(place)
        supervisor.kill()
        supervisor.wait()
        eventually(lambda: running_in(place) == [], timeout_s=START_S)
    with _stack(place), Client(url_of(place)) as client:
        assert client.wait(client.submit(TINY).id, timeout_s=START_S).status == "succeeded"


def test_a_folder_has_one_stack_at_a_time(place: Path) -> None:
    with _stack(place):
        url_of(place)
        with _stack(place) as second:
            assert second.wait(START_S) == 1
        assert f"a stack already runs in {place / 'home'}" in log_of(place).read_text()


def test_a_port_in_use_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _stack(place, f"--port={port}") as process:
            assert process.wait(START_S) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in log_of(place).read_text()


def test_a_broker_that_is_not_there_is_named(place: Path) -> None:
    with _stack(place, redis_bin="/nowhere/redis-server") as process:
        assert process.wait(START_S) == 1
    message = "fedq: FEDQ_REDIS_BIN is /nowhere/redis-server, which is no program"
    assert message in log_of(place).read_text().splitlines()


def test_a_child_that_keeps_ending_ends_the_stack_with_its_last_words(place: Path) -> None:
    with _stack(place, storage_url="nosuchscheme://bucket") as process:
        assert process.wait(START_S) == 1
    assert "nosuchscheme" in log_of(place).read_text()


def test_a_bad_setting_is_named(place: Path) -> None:
    with _stack(place, lease_seconds="0") as process:
        assert process.wait(START_S) == 1
    assert log_of(place).read_text() == "fedq: FEDQ_LEASE_SECONDS: Input should be greater than 0, not '0'\n"


def test_a_home_too_deep_for_a_socket_will_do(place: Path) -> None:
    deep = place / ("a" * 60) / ("b" * 60)
    with _stack(place, f"--home={deep}"), Client(url_of(place)) as client:
        assert client.wait(client.submit(TINY).id, timeout_s=START_S).status == "succeeded"


def test_without_any_redis_messages_go_through_files(place: Path) -> None:
    with _stack(place, broker_url=f"filesystem://{place}"), Client(url_of(place)) as client:
        assert client.wait(client.submit(TINY).id, timeout_s=START_S).status == "succeeded"
        (run,) = client.runs(next(client.experiments()).id)
        assert [row.round for row in client.rounds(run.id)] == [1, 2, 3]


def test_it_listens_on_loopback_unless_told_otherwise(place: Path) -> None:
    with _stack(place):
        elsewhere = httpx.URL(url_of(place)).copy_with(host="127.0.0.2")
        with pytest.raises(httpx.ConnectError):
            httpx.get(elsewhere.join("/healthz"), trust_env=False)


def _stack(place: Path, *options: str, **settings: Any) -> AbstractContextManager[Popen[bytes]]:
    """A stack with one worker; later `options` win."""
    given = (f"--home={place / 'home'}", "--port=0", "--workers=1", *options)
    return started(place, "workers.supervisor", *given, **settings)


def _children(supervisor: Popen[bytes]) -> dict[str, int]:
    """The process ids of a stack's own children, by what they run."""
    names = ("uvicorn", "workers.worker", "workers.reconciler", "valkey-server")
    lines = {child.pid: _command_line(child) for child in psutil.Process(supervisor.pid).children()}
    return {name: pid for name in names for pid, line in lines.items() if name in line}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
