"""`fedq up` and `fedq demo`, with all their processes."""

import os
import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from fedcore.platform.store import Status, open_database, runs
from fedcore.settings import Settings
from fedq.client import Client
from tests.builders.specifications import SYNTHETIC, merged
from tests.support.access import bearer
from tests.support.commands import START_S, interrupted, log_of, started, url_of
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from workers.embedded.stack import Stack, StackError

pytestmark = pytest.mark.slow

EXPERIMENT = merged(SYNTHETIC, {"name": "not over before it is interrupted", "rounds": 100_000})


def test_up_is_opened_by_the_key_in_its_folder_alone_and_stops_on_ctrl_c_between_two_rounds(
    place: Path,
) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1") as up:
        url = url_of(place)
        assert httpx.get(f"{url}/v1/me", trust_env=False).status_code == 401
        key = (place / "home" / "api-key").read_text().strip()
        assert (
            httpx.get(f"{url}/v1/me", headers=bearer(key), trust_env=False).json()["key"]["owner"] == "local"
        )
        (place / "elsewhere" / "tmp").mkdir(parents=True)
        with _fedq(place / "elsewhere", "me", url=url) as asked:
            assert asked.wait(START_S) == 0
        assert "of scope admin" in log_of(place / "elsewhere").read_text()
        with Client(url) as client:
            id = client.submit(EXPERIMENT).id
            eventually(lambda: client.experiment(id).progress.rounds_done > 0, timeout_s=START_S)
        assert interrupted(up) == 0
    with (
        closing(open_database(f"sqlite:///{place / 'home' / 'fedq.db'}")) as database,
        database.reading() as session,
    ):
        (run,) = runs.of_experiment(session, id)
        assert (run.status, run.attempts) == (Status.QUEUED, 0)
        assert run.done > 0


def test_up_lets_other_machines_in_only_with_keys_and_says_how_to_make_one(place: Path) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--host=192.0.2.1", "--workers=1") as process:
        assert process.wait(START_S) == 1
    assert "`fedq key create OWNER --direct`" in log_of(place).read_text()
    environment = os.environ | {"FEDQ_HOME": str(place / "home")}
    with forked(
        "fedq.cli",
        "key",
        "create",
        "ann",
        "--direct",
        log=log_of(place),
        environment=environment,
        folder=place,
    ) as made:
        assert made.wait(START_S) == 0, log_of(place).read_text()
    with (
        pytest.raises(StackError, match=r"cannot listen on 192\.0\.2\.1:8642"),
        Stack(Settings(_env_file=None, home=place / "home"), "192.0.2.1", 8642, [None]),
    ):
        pass


@pytest.mark.nightly
def test_the_demo_prints_a_table_draws_pictures_and_leaves_nothing_running(place: Path) -> None:
    with _demo(place, "--set", "rounds=2", "--set", "seeds=[0, 1]") as process:
        assert process.wait(START_S) == 0, log_of(place).read_text()
    printed = log_of(place).read_text()
    assert printed.count("succeeded after 2 rounds") == 8
    assert "test accuracy in %, mean ± std over 2 seeds" in printed
    for arm in ("fedavg", "fedprox mu=0.1", "fednova", "scaffold"):
        assert any(line.strip().startswith(arm) and "±" in line for line in printed.splitlines())
    assert {picture.name for picture in (place / "pictures").iterdir()} == {"demo.svg", "demo.png"}
    assert list((place / "tmp").iterdir()) == []


@pytest.mark.nightly
def test_an_interrupted_demo_cleans_up(place: Path) -> None:
    with _demo(place) as process:
        eventually(lambda: list((place / "tmp").glob("*/ready")), timeout_s=START_S)
        assert interrupted(process) == 130
    assert list((place / "tmp").iterdir()) == []


def _fedq(place: Path, *arguments: str, **settings: str) -> AbstractContextManager[Popen[bytes]]:
    return started(place, "fedq.cli", *arguments, **settings)


def _demo(place: Path, *options: str) -> AbstractContextManager[Forked]:
    """`fedq demo` with one worker and pictures in `place`.

    Its temporary files are in `place/tmp`, where none is at first.
    """
    (place / "tmp").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(place / "tmp")}
    arguments = ("demo", *options, "--output", str(place / "pictures"))
    return forked(
        "tests.fedq.cli.small_demo", *arguments, log=log_of(place), environment=environment, folder=place
    )
