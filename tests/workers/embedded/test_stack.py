"""The embedded stack under faults of its own processes, and where it cannot start.

A stack takes seconds to start, so those tests that leave one whole share it.
"""

import os
import signal
import socket
import stat
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
from redis import Redis
from redis.exceptions import ConnectionError as NotThereError
from sqlalchemy import select

from fedcore.errors import SettingsError
from fedcore.platform import local_credentials
from fedcore.platform.access import LOCAL, Scope, Token
from fedcore.platform.store import Session, keys, open_database
from fedcore.platform.store.tables import GroupRecord
from fedcore.settings import Settings
from fedq.client import Client
from tests.builders.specifications import SYNTHETIC, TINY, merged
from tests.builders.transactions import read, write
from tests.support.brokers import connect
from tests.support.commands import START_S, log_of, running_in, started, url_of
from tests.support.forks import forked
from tests.support.polling import eventually
from tests.support.processes import served
from tests.workers.embedded_stacks import children
from workers.embedded.stack import (
    Stack,
    StackError,
    broker_command,
    broker_socket,
    ensure_admin_key,
    find_broker,
    open_listener,
)

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


@pytest.mark.slow
def test_stack_listens_on_loopback_unless_told_otherwise(embedded: Embedded) -> None:
    embedded.supervisor()
    elsewhere = httpx.URL(url_of(embedded.place)).copy_with(host="127.0.0.2")
    with pytest.raises(httpx.ConnectError):
        httpx.get(elsewhere.join("/healthz"), trust_env=False)


@pytest.mark.slow
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
    ports = set()
    for process in (root, *root.children(recursive=True)):
        # A process that has ended since they were listed has no ports.
        with suppress(psutil.NoSuchProcess):
            ports |= {
                f"{found.laddr.ip}:{found.laddr.port}"
                for found in process.net_connections("inet")
                if found.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
            }
    return ports


@pytest.mark.slow
def test_a_folder_has_one_stack_at_a_time(embedded: Embedded) -> None:
    embedded.supervisor()
    with pytest.raises(StackError, match=f"a stack already runs in {embedded.home}"), _stack(embedded.home):
        pass


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_port_in_use_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(StackError, match=f"cannot listen on 127.0.0.1:{port}"),
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


@pytest.mark.slow
@pytest.mark.nightly
def test_a_child_that_keeps_ending_ends_the_stack_with_its_last_words(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    # The supervisor leaves it to the processes that use it.
    monkeypatch.setenv("FEDQ_BROKER_URL", "nosuchscheme://127.0.0.1")
    with _stack(place / "home") as stack, pytest.raises(StackError, match="nosuchscheme"):
        stack.run(threading.Event(), when_ready=lambda: pytest.fail("it is ready"))


@pytest.mark.slow
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


# The embedded stack's own broker: private, and without memory of its own on disk.


def test_broker_serves_on_a_socket_that_only_its_owner_may_use_and_forgets_everything_with_its_end(
    place: Path,
) -> None:
    binary, socket = find_broker(), broker_socket(place)
    assert binary is not None
    with (
        served(broker_command(binary, socket), place / "log", cwd=place),
        connect(f"redis+socket://{socket}") as client,
    ):
        eventually(lambda: _answers(client))
        assert socket.stat().st_mode & 0o777 == 0o700
        kept = {
            name: client.config_get(name)[name] for name in ("port", "save", "appendonly", "maxmemory-policy")
        }
        assert kept == {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        client.set("key", "value")
    assert {path.name for path in place.iterdir()} <= {"log", socket.name}


def test_socket_of_the_broker_is_in_the_run_folder_where_the_path_is_short_enough(place: Path) -> None:
    assert broker_socket(place) == place / "broker.sock"


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_path_too_long_for_a_socket_is_replaced_by_a_private_one_elsewhere(
    place: Path, letter: str
) -> None:
    # 107 bytes are what the kernel takes; é has two.
    limit = 107 - len(bytes(place / "x" / "broker.sock")) + 1
    fits = place / (letter * (limit // len(letter.encode())))
    assert broker_socket(fits) == fits / "broker.sock"
    elsewhere = broker_socket(Path(f"{fits}{letter}"))
    assert elsewhere.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes(elsewhere)) <= 107


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except NotThereError:
        return False


# The key that an embedded stack makes for itself, and who may come in by which address.

EVERYWHERE = "0.0.0.0"


@pytest.fixture
def configured(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(_env_file=None, home=tmp_path, database_url=sqlite_url)


def test_the_key_is_made_once_for_an_administrator_and_only_its_user_can_read_it(
    configured: Settings,
) -> None:
    first, text = ensure_admin_key(configured), local_credentials.load(configured.home)
    assert text is not None
    assert (ensure_admin_key(configured), local_credentials.load(configured.home)) == (first, text)
    assert stat.S_IMODE(local_credentials.key_path(configured.home).stat().st_mode) == 0o600
    with closing(open_database(configured.database)) as database:
        record, _ = read(database, keys.verify, Token.parse(text))
    assert (record.id, record.owner, record.scope) == (first, LOCAL, Scope.ADMIN)


@pytest.mark.parametrize("damage", ["revoked", "lost", "of another database", "no key at all"])
def test_a_key_that_opens_nothing_is_replaced(configured: Settings, damage: str) -> None:
    first = ensure_admin_key(configured)
    match damage:
        case "revoked":
            with closing(open_database(configured.database)) as database:
                write(database, keys.revoke, first)
        case "lost":
            local_credentials.key_path(configured.home).unlink()
        case "of another database":
            local_credentials.save(configured.home, Token.of("key_" + "0" * 26).text)
        case _:
            local_credentials.key_path(configured.home).write_bytes(b"\xff\xfe")
    assert ensure_admin_key(configured) != first
    assert local_credentials.load(configured.home) is not None


def test_other_users_are_let_in_only_where_one_of_them_has_a_key(configured: Settings) -> None:
    own = ensure_admin_key(configured)
    with open_listener(configured, "localhost", 0, own) as listener:
        assert listener.getsockname()[0] in {"127.0.0.1", "::1"}
    with (
        pytest.raises(StackError, match=f"listening on {EVERYWHERE} .* `fedq key create OWNER --direct`"),
        open_listener(configured, EVERYWHERE, 0, own),
    ):
        pass
    with closing(open_database(configured.database)) as database:
        write(database, keys.create, owner="ann", scope=Scope.SUBMIT)
    with open_listener(configured, EVERYWHERE, 0, own) as listener:
        assert listener.getsockname()[0] == EVERYWHERE


def test_an_answer_does_not_wait_for_its_head_to_be_acknowledged(configured: Settings) -> None:
    with (
        open_listener(configured, "127.0.0.1", 0, ensure_admin_key(configured)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
