"""Tables and results that take long delay no other request."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from api.http.gates import OwnerGate, Result
from fedcore.errors import StateConflictError
from fedcore.platform.store.database import POOLED
from fedcore.settings import Settings
from tests.api.histories import TWO_ARMS, submit
from tests.support.access import key_for
from tests.support.asgi import application, calling

READ = (
    "/v1/arms",
    "/v1/compare?arm={id}",
    "/v1/compare/figure.csv?arm={id}",
    "/v1/experiments/{id}/claims",
    "/v1/experiments/{id}/figure.csv",
    "/v1/experiments/{id}/reproduction",
    "/v1/experiments/{id}/results",
    "/v1/experiments/{id}/theory",
    "/arms/matching?filter=seeds=3",
    "/arms/rows",
    "/experiments/{id}/claims",
    "/experiments/{id}/download/curves.csv",
    "/experiments/{id}/download/results.json",
)


class SlowGate(OwnerGate):
    """Work that takes until it may go on, and then ends in an error."""

    def __init__(self) -> None:
        super().__init__(2)
        self.began, self.go_on = threading.Semaphore(0), threading.Event()

    async def run(self, owner: str, work: Callable[[], Result]) -> Result:
        def work_slowly() -> Result:
            self.began.release()
            self.go_on.wait()
            raise StateConflictError("enough")

        return await super().run(owner, work_slowly)


@pytest.mark.parametrize("path", READ)
def test_an_owner_reads_one_at_a_time_and_others_meanwhile(
    settings: Settings, admin_key: str, path: str
) -> None:
    gate, app = SlowGate(), application(settings)
    app.state.fedq = replace(app.state.fedq, reading_gate=gate)
    with (
        calling(app, admin_key) as http,
        calling(app, key_for(settings.database, "bob")) as bob,
        ThreadPoolExecutor(POOLED + 4) as clients,
    ):
        address = path.format(id=submit(http, TWO_ARMS)["id"])
        try:
            read = [clients.submit(http.get, address) for _ in range(POOLED + 2)]
            assert gate.began.acquire(timeout=60)
            assert clients.submit(http.get, "/v1/me").result(timeout=60).status_code == 200
            assert not gate.began.acquire(blocking=False)
            read.append(clients.submit(bob.get, address))
            assert gate.began.acquire(timeout=60)
        finally:
            gate.go_on.set()
        assert {one.result().status_code for one in read} == {409}
