"""The key that an embedded stack makes for itself, and who may come in by which address."""

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.platform import local_credentials
from fedcore.platform.access import LOCAL, Scope, Token
from fedcore.platform.store import keys, open_database
from fedcore.settings import Settings
from tests.platform.store.acts import read, write
from workers.embedded.stack import ListenError, ensure_admin_key, open_listener

EVERYWHERE = "0.0.0.0"


@pytest.fixture
def configured(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(_env_file=None, home=tmp_path, database_url=sqlite_url)


def test_the_key_is_made_once_for_an_administrator_and_only_its_user_can_read_it(
    configured: Settings,
) -> None:
    first, text = ensure_admin_key(configured), local_credentials.load(configured.home)
    assert text is not None
    assert (ensure_admin_key(configured), local_credentials.load(configured.home)) == (first, text)
    assert stat.S_IMODE(local_credentials.key_path(configured.home).stat().st_mode) == 0o600
    with closing(open_database(configured.database)) as database:
        record, _ = read(database, keys.verify, Token.parse(text))
    assert (record.id, record.owner, record.scope) == (first, LOCAL, Scope.ADMIN)


@pytest.mark.parametrize("damage", ["revoked", "lost", "of another database", "no key at all"])
def test_a_key_that_opens_nothing_is_replaced(configured: Settings, damage: str) -> None:
    first = ensure_admin_key(configured)
    match damage:
        case "revoked":
            with closing(open_database(configured.database)) as database:
                write(database, keys.revoke, first)
        case "lost":
            local_credentials.key_path(configured.home).unlink()
        case "of another database":
            local_credentials.save(configured.home, Token.of("key_" + "0" * 26).text)
        case _:
            local_credentials.key_path(configured.home).write_bytes(b"\xff\xfe")
    assert ensure_admin_key(configured) != first
    assert local_credentials.load(configured.home) is not None


def test_others_are_let_in_only_where_one_of_them_has_a_key(configured: Settings) -> None:
    own = ensure_admin_key(configured)
    with open_listener(configured, "localhost", 0, own) as listener:
        assert listener.getsockname()[0] in {"127.0.0.1", "::1"}
    with (
        pytest.raises(ListenError, match=f"listening on {EVERYWHERE} .* `fedq key create OWNER --direct`"),
        open_listener(configured, EVERYWHERE, 0, own),
    ):
        pass
    with closing(open_database(configured.database)) as database:
        write(database, keys.create, owner="ann", scope=Scope.SUBMIT)
    with open_listener(configured, EVERYWHERE, 0, own) as listener:
        assert listener.getsockname()[0] == EVERYWHERE


def test_an_answer_does_not_wait_for_its_head_to_be_acknowledged(configured: Settings) -> None:
    with (
        open_listener(configured, "127.0.0.1", 0, ensure_admin_key(configured)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
