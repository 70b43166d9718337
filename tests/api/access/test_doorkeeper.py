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
from tests.platform.store.acts import write


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


def test_of_a_key_that_many_show_at_one_moment_the_database_is_asked_once(database: Database) -> None:
    key_id, token = key(database)

    async def show() -> None:
        doorkeeper = KeyAuthenticator(database)
        await doorkeeper.recognise(token)
        doorkeeper.forget()
        with questions() as asked:
            shown = await asyncio.gather(*(doorkeeper.recognise(token) for _ in range(20)))
        assert {principal.key_id for principal in shown} == {key_id}
        assert sum("key" in statement and "SELECT" in statement for statement in asked) == 1

    asyncio.run(show())


def test_an_answer_from_before_a_revocation_lets_nobody_in_after_it(database: Database) -> None:
    key_id, token = key(database)

    async def show() -> None:
        doorkeeper = KeyAuthenticator(database)
        before = asyncio.create_task(doorkeeper.recognise(token))
        await asyncio.sleep(0)
        write(database, keys.revoke, key_id)
        doorkeeper.forget()
        await asyncio.gather(before, return_exceptions=True)
        with pytest.raises(AuthenticationError):
            await doorkeeper.recognise(token)

    asyncio.run(show())


def test_a_key_that_is_none_is_refused_to_all_who_show_it_at_one_moment(database: Database) -> None:
    _, token = key(database)
    wrong = Token.parse(token.text[:-1] + ("0" if token.text[-1] != "0" else "1"))

    async def show() -> None:
        doorkeeper = KeyAuthenticator(database)
        answers = await asyncio.gather(
            *(doorkeeper.recognise(wrong) for _ in range(5)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [AuthenticationError] * 5

    asyncio.run(show())
