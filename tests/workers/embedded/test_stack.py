"""The embedded stack under faults of its own processes, and where it cannot start.

A stack takes seconds to start, so those tests that leave one whole share it.
"""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import select

from fedcore.errors import SettingsError
from fedcore.platform.store import Session, open_database
from fedcore.platform.store.tables import GroupRecord
from fedcore.settings import Settings
from fedq.client import Client
from tests.api.histories import TINY
from tests.documents import SYNTHETIC, merged
from tests.platform.store.acts import read
from tests.support.commands import START_S, log_of, running_in, started, url_of
from tests.support.forks import forked
from tests.support.polling import eventually
from tests.workers.stacks import children
from workers.embedded.stack import ListenError, Stack, StackError

pytestmark = pytest.mark.slow

LONG = merged(SYNTHETIC, {"name": "not over before it is disturbed", "rounds": 100_000})


class Embedded:
    """A stack with one worker, started when it is asked for.

    It may be killed, and started again in its folder.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        # Too deep for a socket: its broker has to be elsewhere.
        self.home = place / ("a" * 60) / ("b" * 60)
        self._open = ExitStack()
        self._supervisor: Popen[bytes] | None = None
        self._settings: dict[str, str] = {}

    def supervisor(self, **settings: str) -> Popen[bytes]:
        """The process that is the stack, which answers at `url_of(place)`.

        One that another test left with other settings is ended.
        """
        if self._supervisor is None or self._supervisor.poll() is not None or self._settings != settings:
            self.end()
            self._settings = settings
            options = (f"--home={self.home}", "--port=0", "--workers=1")
            self._supervisor = self._open.enter_context(
                started(self.place, "workers.embedded.supervisor", *options, **settings)
            )
            url_of(self.place)
        return self._supervisor

    def client(self) -> Client:
        """One that does not try again."""
        return Client(url_of(self.place), (self.home / "api-key").read_text().strip(), patience_s=0)

    def end(self) -> None:
        """End it."""
        self._open.close()


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with tempfile.TemporaryDirectory() as folder:
        stack = Embedded(Path(folder))
        try:
            yield stack
        finally:
            stack.end()
        eventually(lambda: not running_in(Path(folder)))


def test_it_listens_on_loopback_unless_told_otherwise(embedded: Embedded) -> None:
    embedded.supervisor()
    elsewhere = httpx.URL(url_of(embedded.place)).copy_with(host="127.0.0.2")
    with pytest.raises(httpx.ConnectError):
        httpx.get(elsewhere.join("/healthz"), trust_env=False)


def test_the_only_ports_are_its_own_and_that_of_a_run_in_shards_all_on_loopback(embedded: Embedded) -> None:
    """Which the processes of the stack have, by /proc/net."""
    supervisor = embedded.supervisor()
    with (
        embedded.client() as client,
        closing(open_database(f"sqlite:///{embedded.home / 'fedq.db'}")) as database,
    ):
        experiment = client.submit(merged(LONG, {"execution": {"shards": 2}}))
        (group,) = eventually(lambda: read(database, _addresses), START_S)
        own = url_of(embedded.place).removeprefix("http://")
        assert _open_ports(supervisor.pid) == {own, group}
        client.cancel(experiment.id)
        eventually(lambda: _open_ports(supervisor.pid) == {own})
        client.delete(experiment.id)


def _addresses(session: Session) -> list[str]:
    return list(session.scalars(select(GroupRecord.address)))


def _open_ports(supervisor: int) -> set[str]:
    """Addresses at which the processes of a stack take connections or datagrams of others."""
    root = psutil.Process(supervisor)
    return {
        f"{found.laddr.ip}:{found.laddr.port}"
        for process in (root, *root.children(recursive=True))
        for found in process.net_connections("inet")
        if found.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    }


def test_a_folder_has_one_stack_at_a_time(embedded: Embedded) -> None:
    embedded.supervisor()
    with pytest.raises(StackError, match=f"a stack already runs in {embedded.home}"), _stack(embedded.home):
        pass


def test_killed_children_are_started_again_and_no_request_is_refused_meanwhile(embedded: Embedded) -> None:
    supervisor = embedded.supervisor()
    with embedded.client() as client:
        known = [one.id for one in client.experiments()]
    # A connection that was open when the API was killed would be cut off.
    with embedded.client() as client:
        before = eventually(lambda: _all_five(children(supervisor)))
        # A fork keeps the locks that other threads hold.
        assert psutil.Process(before["workers.embedded.forkserver"]).num_threads() == 1
        os.kill(before["api.app:create_app"], signal.SIGKILL)
        assert [one.id for one in client.experiments()] == known
        for name in ("worker-1", "reconciler", "workers.embedded.forkserver", "valkey-server"):
            os.kill(before[name], signal.SIGKILL)
        eventually(
            lambda: _all_five(
                {name: pid for name, pid in children(supervisor).items() if pid != before[name]}
            ),
            START_S,
        )
        experiment = client.submit(TINY)
        assert client.wait(experiment.id, timeout_s=START_S).status == "succeeded"
        client.delete(experiment.id)


def test_nothing_outlives_a_killed_supervisor_and_the_next_one_goes_on_in_its_place_even_without_any_redis(
    embedded: Embedded,
) -> None:
    supervisor = embedded.supervisor()
    with embedded.client() as client:
        id = client.submit(LONG).id
        before = eventually(lambda: client.experiment(id).progress.rounds_done, START_S)
        supervisor.kill()
        supervisor.wait()
    eventually(lambda: running_in(embedded.place) == [], START_S)
    embedded.supervisor(broker_url=f"filesystem://{embedded.place}")
    with embedded.client() as client:
        eventually(lambda: client.experiment(id).progress.rounds_done > before, START_S)
        client.cancel(id)
        assert client.wait(client.submit(TINY).id, timeout_s=START_S).status == "succeeded"
        (run,) = client.runs(id)
        assert [row.round for row in client.rounds(run.id)] == list(range(1, run.rounds_done + 1))


def test_nothing_outlives_a_supervisor_that_is_killed_while_it_prepares_the_database(place: Path) -> None:
    with started(place, "workers.embedded.supervisor", "--home=home", "--port=0") as supervisor:
        (preparing,) = eventually(psutil.Process(supervisor.pid).children, START_S)
        supervisor.kill()
        supervisor.wait()
    try:
        eventually(lambda: running_in(place) == [])
    finally:
        with suppress(psutil.NoSuchProcess):
            preparing.kill()


def test_a_port_in_use_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}"),
            _stack(place / "home", port),
        ):
            pass


def test_a_home_that_others_could_read_is_closed(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    home.chmod(0o755)
    with pytest.raises(SettingsError), _stack(home, storage_url="nosuchscheme://bucket"):
        pass
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.nightly
def test_a_child_that_keeps_ending_ends_the_stack_with_its_last_words(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    monkeypatch.setenv("FEDQ_STORAGE_URL", "nosuchscheme://bucket")
    with _stack(place / "home") as stack, pytest.raises(StackError, match="nosuchscheme"):
        stack.run(threading.Event(), when_ready=lambda: pytest.fail("it is ready"))


def test_a_bad_setting_is_named(place: Path) -> None:
    environment = os.environ | {"FEDQ_LEASE_SECONDS": "0"}
    with forked(
        "workers.embedded.supervisor", "--home=home", log=log_of(place), environment=environment, folder=place
    ) as process:
        assert process.wait(START_S) == 1
    assert log_of(place).read_text() == "fedq: FEDQ_LEASE_SECONDS: Input should be greater than 0, not '0'\n"


def _stack(home: Path, port: int = 0, **given: Any) -> Stack:
    """A stack of this process with one worker, without a supervisor's own process."""
    return Stack(Settings(_env_file=None, home=home, **given), "127.0.0.1", port, [None])


def _all_five(children: dict[str, int]) -> dict[str, int]:
    return children if len(children) == 5 else {}
