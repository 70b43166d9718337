"""The embedded stack's own broker: private, and without memory of its own on disk."""

from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotThereError

from tests.support.brokers import connect
from tests.support.polling import eventually
from tests.support.processes import served
from workers.embedded.stack import broker_command, broker_socket, find_broker


def test_it_serves_on_a_socket_that_only_its_owner_may_use_and_forgets_everything_with_its_end(
    place: Path,
) -> None:
    binary, socket = find_broker(), broker_socket(place)
    assert binary is not None
    with (
        served(broker_command(binary, socket), place / "log", cwd=place),
        connect(f"redis+socket://{socket}") as client,
    ):
        eventually(lambda: _answers(client))
        assert socket.stat().st_mode & 0o777 == 0o700
        kept = {
            name: client.config_get(name)[name] for name in ("port", "save", "appendonly", "maxmemory-policy")
        }
        assert kept == {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        client.set("key", "value")
    assert {path.name for path in place.iterdir()} <= {"log", socket.name}


def test_its_socket_is_in_the_run_folder_where_the_path_is_short_enough(place: Path) -> None:
    assert broker_socket(place) == place / "broker.sock"


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_path_too_long_for_a_socket_is_replaced_by_a_private_one_elsewhere(
    place: Path, letter: str
) -> None:
    # 107 bytes are what the kernel takes; é has two.
    limit = 107 - len(bytes(place / "x" / "broker.sock")) + 1
    fits = place / (letter * (limit // len(letter.encode())))
    assert broker_socket(fits) == fits / "broker.sock"
    elsewhere = broker_socket(Path(f"{fits}{letter}"))
    assert elsewhere.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes(elsewhere)) <= 107


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except NotThereError:
        return False
