"""`fedq up` and `fedq demo`, with all their processes."""

from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from api.client import Client
from tests.documents import SYNTHETIC, merged
from tests.support.access import bearer
from tests.support.commands import START_S, interrupted, log_of, started, url_of
from tests.support.polling import eventually

pytestmark = pytest.mark.slow

EXPERIMENT = merged(SYNTHETIC, {"name": "some seconds of work", "rounds": 300, "execution": {"engine": "vectorised"}})


def test_up_stops_on_ctrl_c_and_goes_on_where_it_was(place: Path) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1") as first, Client(url_of(place)) as client:
        id = client.submit(EXPERIMENT).id
        eventually(lambda: client.experiment(id).progress.rounds_done > 0, timeout_s=START_S)
        assert interrupted(first) == 0
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1") as second, Client(url_of(place)) as client:
        (run,) = client.runs(id)
        assert 0 < run.rounds_done < EXPERIMENT["rounds"], "the run was over before it was interrupted, or began anew"
        assert client.wait(id, timeout_s=START_S).status == "succeeded"
        assert [row.round for row in client.rounds(run.id)] == list(range(1, EXPERIMENT["rounds"] + 1))
        assert interrupted(second) == 0


def test_up_lets_other_machines_in_only_with_keys_and_says_how_to_make_one(place: Path) -> None:
    up = ("up", f"--home={place / 'home'}", "--host=192.0.2.1", "--workers=1")
    with _fedq(place, *up) as process:
        assert process.wait(START_S) == 1
    assert "`fedq key create OWNER --direct`" in log_of(place).read_text()
    with _fedq(place, "key", "create", "ann", "--direct", home=str(place / "home")) as made:
        assert made.wait(START_S) == 0, log_of(place).read_text()
    with _fedq(place, *up) as process:
        assert process.wait(START_S) == 1
    assert "cannot listen on 192.0.2.1:8642" in log_of(place).read_text()


def test_a_stack_is_opened_by_the_key_in_its_folder_alone_and_commands_find_it_from_anywhere(place: Path) -> None:
    with _fedq(place, "up", f"--home={place / 'home'}", "--port=0", "--workers=1"):
        url = url_of(place)
        assert httpx.get(f"{url}/v1/me", trust_env=False).status_code == 401
        key = (place / "home" / "api-key").read_text().strip()
        assert httpx.get(f"{url}/v1/me", headers=bearer(key), trust_env=False).json()["key"]["owner"] == "local"
        (place / "elsewhere" / "tmp").mkdir(parents=True)
        with _fedq(place / "elsewhere", "me", url=url) as asked:
            assert asked.wait(START_S) == 0
        assert "of scope admin" in log_of(place / "elsewhere").read_text()


def test_the_demo_prints_a_table_draws_pictures_and_leaves_nothing_running(place: Path) -> None:
    with _fedq(place, "demo", "--set", "rounds=2", "--set", "seeds=[0, 1]", "--output", str(place / "pictures")) as process:
        assert process.wait(START_S) == 0, log_of(place).read_text()
    printed = log_of(place).read_text()
    assert printed.count("succeeded after 2 rounds") == 8
    assert "test accuracy in %, mean ± std over 2 seeds" in printed
    for arm in ("fedavg", "fedprox mu=0.1", "fednova", "scaffold"):
        assert any(line.strip().startswith(arm) and "±" in line for line in printed.splitlines())
    assert {picture.name for picture in (place / "pictures").iterdir()} == {"demo.svg", "demo.png"}
    assert list((place / "tmp").iterdir()) == []


def test_an_interrupted_demo_cleans_up(place: Path) -> None:
    with _fedq(place, "demo", "--output", str(place / "pictures")) as process:
        eventually(lambda: list((place / "tmp").glob("*/ready")), timeout_s=START_S)
        assert interrupted(process) == 130
    assert list((place / "tmp").iterdir()) == []


def _fedq(place: Path, *arguments: str, **settings: str) -> AbstractContextManager[Popen[bytes]]:
    return started(place, "api.cli", *arguments, **settings)
