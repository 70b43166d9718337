"""How clients on a machine find the key of a stack that runs there."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedcore.platform import local_credentials
from fedcore.settings import settings
from fedq.client import Client
from fedq.client.client import service_url

URL = "http://127.0.0.1:8642"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def _stack(home: Path, url: str = URL) -> Iterator[None]:
    """A stack, as far as clients can tell."""
    local_credentials.lock_path(home).parent.mkdir(parents=True, exist_ok=True)
    local_credentials.save(home, "fq_1_secret")
    with local_credentials.lock_path(home).open("w") as lock, local_credentials.advertised(url, home):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_the_key_of_a_running_stack_is_found_by_any_name_of_this_machine(tmp_path: Path) -> None:
    with _stack(tmp_path / "home"):
        assert [
            local_credentials.discover(f"http://{host}:8642/") for host in ("127.0.0.1", "localhost", "[::1]")
        ] == ["fq_1_secret"] * 3


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9000", "http://fedq.example:8642", "http://127.0.0.1", "http://:port", "nonsense"],
)
def test_no_other_service_is_shown_it(tmp_path: Path, url: str) -> None:
    with _stack(tmp_path / "home"):
        assert local_credentials.discover(url) is None


def test_local_key_is_found_no_more_once_the_stack_has_ended(tmp_path: Path) -> None:
    with _stack(tmp_path / "home"):
        pass
    assert local_credentials.discover(URL) is None


def test_the_note_that_a_killed_stack_leaves_is_not_believed(tmp_path: Path) -> None:
    with _stack(tmp_path / "home"):
        notes = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    for path, note in notes.items():
        path.write_bytes(note)
    assert local_credentials.discover(URL) is None


def test_the_address_is_that_of_the_folder_or_of_the_only_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDQ_URL", raising=False)
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    with _stack(tmp_path / "other", "http://127.0.0.1:9000"):
        assert service_url() == "http://127.0.0.1:9000"
        with _stack(tmp_path / "third", "http://127.0.0.1:9001"):
            assert service_url() == URL
            with _stack(tmp_path / "home", "http://10.0.0.1:9002"):
                assert service_url() == "http://10.0.0.1:9002"
                assert local_credentials.discover("http://10.0.0.1:9002") == "fq_1_secret"
                monkeypatch.setenv("FEDQ_URL", "http://fedq.example")
                settings.cache_clear()
                assert service_url() == "http://fedq.example"
                monkeypatch.delenv("FEDQ_URL")
                settings.cache_clear()
    assert service_url() == URL
    settings.cache_clear()


def test_a_client_sends_what_it_was_given_before_what_it_finds(tmp_path: Path) -> None:
    with _stack(tmp_path / "home"), Client(URL) as finding, Client(URL, "fq_2_given") as given:
        sent = [client._transport.wire.http.headers["Authorization"] for client in (finding, given)]
    assert sent == ["Bearer fq_1_secret", "Bearer fq_2_given"]
