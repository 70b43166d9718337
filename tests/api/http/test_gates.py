"""Tables and results that take long delay no other request."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fedcore.platform.store.database import POOLED
from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS
from tests.support.access import key_for
from tests.support.asgi import application, calling
from tests.support.slow_gates import SlowGate

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
)


@pytest.mark.parametrize("path", READ)
def test_an_owner_reads_one_at_a_time_and_others_meanwhile(
    settings: Settings, admin_key: str, path: str
) -> None:
    gate, app = SlowGate(2), application(settings)
    app.state.fedq = replace(app.state.fedq, reading_gate=gate)
    with (
        calling(app, admin_key) as http,
        calling(app, key_for(settings.database, "bob")) as bob,
        ThreadPoolExecutor(POOLED + 4) as clients,
    ):
        address = path.format(id=submit_over_http(http, TWO_ARMS)["id"])
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
