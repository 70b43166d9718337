"""API keys: only a digest is kept, and only what was made, is not revoked and has not expired opens
anything.
"""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from fedcore.errors import AuthenticationError, ResourceNotFoundError
from fedcore.platform.access import Principal, Scope, Token
from fedcore.platform.store import Database, keys
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import KeyRecord
from tests.builders.transactions import read, write


def made(database: Database, owner: str = "ann", **values: Any) -> tuple[str, Token]:
    record, token = write(database, keys.create, owner=owner, scope=Scope.SUBMIT, **values)
    return record.id, token


def test_a_key_is_found_by_its_text_of_which_only_a_digest_is_kept(database: Database) -> None:
    key_id, token = made(database, name="laptop")
    record, to_note = read(database, keys.verify, token)
    assert (record.id, record.owner, record.scope, record.name, to_note) == (
        key_id,
        "ann",
        Scope.SUBMIT,
        "laptop",
        True,
    )
    with database.reading() as session:
        stored = session.execute(select(*KeyRecord.__table__.columns)).one()
    assert token.text.rpartition("_")[2] not in str(stored)


def test_a_key_with_another_secret_or_of_no_row_is_unknown(database: Database) -> None:
    key_id, _ = made(database)
    for token in (Token.of(key_id), Token.of("key_" + "0" * 26)):
        with pytest.raises(AuthenticationError, match="is unknown") as refused:
            read(database, keys.verify, token)
        assert token.text not in str(refused.value)


def test_a_revoked_key_is_refused_and_keeps_the_moment_of_its_revocation(database: Database) -> None:
    key_id, token = made(database)
    first = write(database, keys.revoke, key_id).revoked_at
    assert first == write(database, keys.revoke, key_id).revoked_at
    with pytest.raises(AuthenticationError, match="was revoked at"):
        read(database, keys.verify, token)
    with pytest.raises(ResourceNotFoundError):
        write(database, keys.revoke, "key_0")


def test_a_key_expires_by_the_clock_of_the_database(database: Database) -> None:
    with database.reading() as session:
        moment = session.scalars(select(sql_now())).one()
    _, lasting = made(database, expires_at=moment + timedelta(minutes=1))
    _, over = made(database, expires_at=moment)
    assert read(database, keys.verify, lasting)
    with pytest.raises(AuthenticationError, match="expired at"):
        read(database, keys.verify, over)


def test_the_last_use_is_noted_once_a_minute(database: Database) -> None:
    key_id, token = made(database)
    write(database, keys.note_use, key_id)
    assert read(database, keys.verify, token)[1] is False
    write(
        database,
        lambda session: session.execute(
            update(KeyRecord).values(last_used_at=sql_now(-keys.USE_NOTED_S - 1))
        ),
    )
    assert read(database, keys.verify, token)[1] is True


def test_keys_are_listed_newest_first(database: Database) -> None:
    ids = [made(database)[0] for _ in range(3)]
    first = read(database, keys.page, limit=2)
    rest = read(database, keys.page, limit=2, cursor=first.next)
    assert sorted(ids) == sorted(record.id for record in (*first.items, *rest.items))
    assert [len(first.items), len(rest.items), rest.next] == [2, 1, None]


def test_a_door_opens_to_others_while_one_of_them_has_a_valid_key(database: Database) -> None:
    own, _ = made(database)
    assert not read(database, keys.opens, besides=own)
    other, _ = made(database)
    assert read(database, keys.opens, besides=own)
    write(database, keys.revoke, other)
    assert not read(database, keys.opens, besides=own)


def test_each_scope_covers_those_before_it_and_only_administrators_see_all() -> None:
    assert [[scope.covers(needed) for needed in Scope] for scope in Scope] == [
        [True, False, False],
        [True, True, False],
        [True] * 3,
    ]
    assert [Principal("key_0", "ann", scope).sees for scope in Scope] == ["ann", "ann", None]


@pytest.mark.parametrize(
    "text",
    ["", "fq", "fq__", "Bearer x", "fq_" + "0" * 26 + "_" + "G" * 64, "fq_" + "0" * 26 + "_" + "0" * 63],
)
def test_malformed_key_is_answered_with_the_form_of_keys_and_not_repeated(text: str) -> None:
    with pytest.raises(AuthenticationError, match="have the form fq_") as refused:
        Token.parse(text)
    assert not text or text not in str(refused.value).replace("fq_<id>_<secret>", "")
