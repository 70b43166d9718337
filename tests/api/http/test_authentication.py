"""Queries of keys: how many, and when."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from api.http.authentication import KeyAuthenticator
from fedcore.errors import AuthenticationError
from fedcore.platform.access import Scope, Token
from fedcore.platform.store import Database, keys
from tests.builders.transactions import write


@contextmanager
def questions() -> Iterator[list[str]]:
    """Record the queries made meanwhile."""
    asked: list[str] = []

    def note(*given: object) -> None:
        asked.append(str(given[2]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def key(database: Database) -> tuple[str, Token]:
    """A new one: its id, and what is shown."""
    record, token = write(database, keys.create, owner="ann", scope=Scope.SUBMIT)
    return record.id, token


def test_a_valid_key_is_verified_once_until_it_is_forgotten(database: Database) -> None:
    key_id, token = key(database)

    async def show() -> None:
        authenticator = KeyAuthenticator(database)
        await authenticator.authenticate(token)
        with questions() as asked:
            assert (await authenticator.authenticate(token)).key_id == key_id
        assert asked == []
        authenticator.forget()
        with questions() as asked:
            await authenticator.authenticate(token)
        assert sum("key" in statement and "SELECT" in statement for statement in asked) == 1

    asyncio.run(show())


def test_an_answer_from_before_a_revocation_lets_nobody_in_after_it(database: Database) -> None:
    key_id, token = key(database)

    async def show() -> None:
        authenticator = KeyAuthenticator(database)
        before = asyncio.create_task(authenticator.authenticate(token))
        await asyncio.sleep(0)
        write(database, keys.revoke, key_id)
        authenticator.forget()
        await asyncio.gather(before, return_exceptions=True)
        with pytest.raises(AuthenticationError):
            await authenticator.authenticate(token)

    asyncio.run(show())


def test_a_wrong_key_is_refused_however_many_show_it_at_one_moment(database: Database) -> None:
    _, token = key(database)
    wrong = Token.parse(token.text[:-1] + ("0" if token.text[-1] != "0" else "1"))

    async def show() -> None:
        authenticator = KeyAuthenticator(database)
        answers = await asyncio.gather(
            *(authenticator.authenticate(wrong) for _ in range(5)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [AuthenticationError] * 5

    asyncio.run(show())
