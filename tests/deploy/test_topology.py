"""The processes of the compose file, run here on a real PostgreSQL and Redis, carry an experiment
out.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fedq.client import Client, ServiceUnreachableError
from tests.builders.specifications import SYNTHETIC
from tests.support.polling import eventually
from tests.support.postgresql import fresh_database
from tests.support.processes import served

pytestmark = pytest.mark.slow

PROCESSES = ("api", "reconciler", "worker")
PROGRAMS = {
    "python": [sys.executable],
    "uvicorn": [sys.executable, "-m", "uvicorn"],
    "fedq": [sys.executable, "-m", "fedq.cli"],
}


def test_the_services_of_the_compose_file_carry_an_experiment_out(
    ours: dict[str, Any], postgresql_server: str, redis_url: str, tmp_path: Path
) -> None:
    port, database = str(_free_port()), f"fedq_{uuid4().hex}"
    with ExitStack() as running:
        database_url = running.enter_context(fresh_database(postgresql_server, database))
        here = {
            "FEDQ_DATABASE_URL": database_url,
            "FEDQ_BROKER_URL": redis_url,
            "FEDQ_STORAGE_URL": str(tmp_path / "storage"),
        }
        places = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            _command(ours["migrate"], port),
            env=places | ours["migrate"]["environment"] | here,
            cwd=tmp_path,
            check=True,
        )
        made = [*PROGRAMS["fedq"], "key", "create", "admin", "--scope=admin", "--direct"]
        printed = subprocess.run(
            made, env=places | here, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        client = running.enter_context(Client(f"http://127.0.0.1:{port}", printed.strip(), patience_s=0))
        for name in PROCESSES:
            environment = places | ours[name]["environment"] | here
            running.enter_context(
                served(_command(ours[name], port), tmp_path / f"{name}.log", env=environment, cwd=tmp_path)
            )
        eventually(lambda: _answers(client), timeout_s=30)
        id = client.submit(SYNTHETIC).id
        assert client.wait(id, timeout_s=60).status == "succeeded"
        run_id = client.runs(id)[0].id
        assert client.model(run_id)
    told = {name: [json.loads(line) for line in _lines(tmp_path / f"{name}.log")] for name in PROCESSES}
    assert all(line["process"] == name for name, lines in told.items() for line in lines)
    about = [line for line in told["worker"] if line.get("run_id") == run_id]
    claimed, loaded, finished = (line["event"] for line in about)
    assert claimed == "run claimed, 0 of 4 rounds are done"
    assert loaded.startswith("run loaded in ")
    assert finished == "run finished after round 4"
    assert all(line["experiment_id"] == id and line["fence"] == 1 and line["worker_id"] for line in about)


def _lines(log: Path) -> list[str]:
    """Lines that a process logged, without those that Celery prints when it is stopped."""
    return [
        line
        for line in log.read_text().splitlines()
        if line and line != "worker: Warm shutdown (MainProcess)"
    ]


def _command(service: dict[str, Any], port: str) -> list[str]:
    """The command of a container, for this machine: its programs, this port, loopback."""
    program, *arguments = service["command"]
    replaced = {"8642": port, "0.0.0.0": "127.0.0.1"}
    return [*PROGRAMS[program], *(replaced.get(argument, argument) for argument in arguments)]


def _answers(client: Client) -> bool:
    try:
        return bool(client.presets())
    except ServiceUnreachableError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
