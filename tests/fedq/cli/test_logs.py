"""`fedq logs` of runs whose workers are elsewhere: lines come from the service."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedcore.platform.status import LogLevel
from fedcore.platform.store.leases import Claim
from fedcore.settings import settings
from fedq.client import Client
from fedq.client.transport import BlockingWire
from tests.builders.claims import claim, end_run
from tests.builders.specifications import TINY
from tests.fedq.cli.conftest import Fedq
from tests.platform.store.test_telemetry import line, note
from tests.support.polling import eventually
from tests.support.proxy import Fault, proxied
from tests.support.service import Service

FIRST = "2026-11-23T12:00:01.000Z worker-1 info event 1 number=1"
SECOND = "2026-11-23T12:00:02.000Z worker-1 error event 2 number=2"


@pytest.fixture
def held(service: Service, client: Client) -> Claim:
    """A run with two lines."""
    client.submit(TINY)
    held = claim(service.database)
    note(service.database, held, [line(1), line(2, LogLevel.ERROR)])
    return held


def test_the_lines_of_a_run_are_printed(fedq: Fedq, held: Claim) -> None:
    assert fedq("logs", held.run_id) == (0, f"{FIRST}\n{SECOND}\n", "")
    assert fedq("logs", held.run_id[:-1]).out == f"{FIRST}\n{SECOND}\n"
    assert fedq("logs", held.run_id, "-n", "1").out == f"{SECOND}\n"
    assert fedq("logs", held.run_id, "--level", "warning").out == f"{SECOND}\n"
    (error,) = fedq("logs", held.run_id, "--level", "error", "--json").out.splitlines()
    assert json.loads(error) == {
        "number": 2,
        "time": "2026-11-23T12:00:02Z",
        "level": "error",
        "worker": "worker-1",
        "event": "event 2",
        "fields": {"number": 2},
    }
    assert fedq("logs", "run_9").code == 4
    assert fedq("logs", held.run_id, "--level", "loud").code == 2


def test_an_experiment_without_files_here_has_the_lines_of_its_runs(
    fedq: Fedq, service: Service, client: Client, held: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path))
    settings.cache_clear()
    client.extend(held.experiment_id, seeds=[1])
    other = claim(service.database, "worker-2")
    note(service.database, other, [line(0)])
    zeroth = "2026-11-23T12:00:00.000Z worker-2 info event 0 number=0"
    assert fedq("logs", held.experiment_id).out.splitlines() == [zeroth, FIRST, SECOND]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").write_text('{"event": "about another experiment"}\n')
    assert fedq("logs", "tiny", "-n", "2").out.splitlines() == [FIRST, SECOND]


def test_a_run_is_followed_to_its_end(service: Service, held: Claim) -> None:
    environment = os.environ | {"FEDQ_URL": service.url, "FEDQ_API_KEY": service.key}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "fedq.cli", "logs", held.run_id, "-f", "-n", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SECOND}\n"
        note(service.database, held, [line(3)])
        end_run(service.database, held)
        assert process.stdout.read() == "2026-11-23T12:00:03.000Z worker-1 info event 3 number=3\n"
        assert process.wait() == 0


@pytest.mark.parametrize("outage", [[Fault.REFUSED] * 9, [Fault.UNAVAILABLE] * 9])
def test_following_a_run_goes_on_through_an_outage(
    fedq: Fedq, service: Service, held: Claim, outage: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockingWire, "sleep", _no_pause)
    monkeypatch.setattr("fedq.cli.logs.SERVICE_POLL_S", 0.05)

    def interrupt() -> None:
        try:
            eventually(lambda: proxy.connections == 2)
            proxy.fail(*outage)
            note(service.database, held, [line(3)])
            eventually(lambda: not proxy.faults)
        finally:
            # Ends the command, whatever came of the outage.
            end_run(service.database, held)

    with proxied(service.url) as proxy, ThreadPoolExecutor(1) as beside:
        monkeypatch.setenv("FEDQ_URL", proxy.url)
        settings.cache_clear()
        interrupted = beside.submit(interrupt)
        told = fedq("logs", held.run_id, "-f")
        interrupted.result()
    third = "2026-11-23T12:00:03.000Z worker-1 info event 3 number=3"
    assert told == (0, f"{FIRST}\n{SECOND}\n{third}\n", "")


async def _no_pause(_wire: BlockingWire, _seconds: float) -> None:
    """Let the next attempt follow at once."""
