"""Clients at work while the API is killed and replaced under them: what was acknowledged is there,
and nothing is there twice.
"""

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from fedcore.platform.store import Database, experiments
from fedq.client import Client, ServiceError, ServiceUnreachableError
from tests.builders.specifications import SYNTHETIC, Document, merged
from tests.support.access import key_for
from tests.support.polling import eventually
from tests.support.processes import served
from tests.workers.deployment import Deployment
from workers.embedded.stack import API

CALLERS = 4
DOCUMENT: Document = merged(SYNTHETIC, {"name": "asked for under fire", "execution": {"queue": "nobody"}})
END_S = 120.0


class Gate:
    """Processes of the API behind one socket, which outlives them."""

    def __init__(self, deployment: Deployment, stack: ExitStack) -> None:
        self._deployment, self._stack = deployment, stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._started = 0
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """One more process, which may not answer yet."""
        self._started += 1
        descriptor = self._listener.fileno()
        command, environment = [*API, f"--fd={descriptor}"], dict(self._deployment.environment)
        return self._stack.enter_context(
            served(command, self._log(), env=environment, cwd=self._deployment.folder, pass_fds=(descriptor,))
        )

    def kill(self) -> None:
        """End the process at once, and start another."""
        self.process.kill()
        self.process.wait()
        self.process = self.start()

    def replace(self) -> None:
        """Start another process, and ask the one before to end once it has answered somebody."""
        before, self.process = self.process, self.start()
        eventually(self._has_served, timeout_s=END_S)
        before.send_signal(signal.SIGTERM)
        # Uvicorn answers what it has begun, and then ends by the signal that it was asked with.
        assert before.wait(END_S) == -signal.SIGTERM

    def _has_served(self) -> bool:
        """True if the latest process has answered a request, which it notes.

        The callers' connections stay with the one before.
        """
        httpx.get(f"{self.url}/v1/me", timeout=END_S, trust_env=False)
        return self._log().stat().st_size > 0

    def _log(self) -> Path:
        return self._deployment.folder / f"api-{self._started}.log"


class Callers:
    """Threads that submit without end, each thing until it is acknowledged. Changes in place."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._over = threading.Event()
        self.acknowledged: dict[str, str] = {}
        """Experiments by the idempotency keys that they were asked for with."""
        self.latest = 0.0
        """When the last of them was asked for."""
        self.failures = 0
        """Calls that the client's own repetitions did not bring to an end."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They submit as long as the block lasts, and finish what they have begun."""
        threads = [threading.Thread(target=self._submit, args=(place,)) for place in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join(END_S)

    def served_after(self, moment: float) -> bool:
        """True if a request made after this moment, by the monotonic clock, has been acknowledged."""
        return self.latest > moment

    def _submit(self, place: int) -> None:
        number = 0
        with Client(self._url, self._key) as client:
            while not self._over.is_set():
                number += 1
                self._insist(client, f"{place}-{number}")

    def _insist(self, client: Client, name: str) -> None:
        while True:
            began = time.monotonic()
            try:
                self.acknowledged[name] = client.submit(DOCUMENT, idempotency_key=name).id
            except (ServiceUnreachableError, ServiceError):
                self.failures += 1
            else:
                self.latest = max(self.latest, began)
                return


@contextmanager
def calling(deployment: Deployment) -> Iterator[tuple[Gate, Callers]]:
    """An API on a deployment with clients at work.

    At the end, what they were told is held against the database.
    """
    with ExitStack() as stack:
        gate = Gate(deployment, stack)
        with calling_at(
            gate.url, key_for(deployment.environment["FEDQ_DATABASE_URL"]), deployment.database
        ) as callers:
            yield gate, callers


@contextmanager
def calling_at(url: str, key: str, database: Database) -> Iterator[Callers]:
    """Clients at work; at the end, what they were told is held against the database."""
    callers = Callers(url, key)
    with callers.at_work():
        eventually(lambda: callers.served_after(0.0), timeout_s=END_S)
        yield callers
    assert stored(database) == sorted(callers.acknowledged.values()), "something was lost, or is there twice"


def stored(database: Database) -> list[str]:
    """The ids of all experiments."""
    found: list[str] = []
    with database.reading() as session:
        cursor = None
        while True:
            page = experiments.page(session, limit=1_000, cursor=cursor)
            found += [record.id for record in page.items]
            if (cursor := page.next) is None:
                return sorted(found)
