"""Transactions of tests on a store: one call, one transaction."""

from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import pytest

from fedcore.platform.store import UNAVAILABLE, Database, Session

Given = ParamSpec("Given")
Result = TypeVar("Result")
Query = Callable[Concatenate[Session, Given], Result]

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
"""For what concerns locks of rows, which SQLite does not have: there one transaction writes at a
time.
"""

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is no matter of the database."""


def write(
    database: Database, query: Query[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """`query` in a transaction of its own."""
    with database.transaction() as session:
        return query(session, *given, **named)


def read(
    database: Database, query: Query[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """`query` on a snapshot of its own."""
    with database.reading() as session:
        return query(session, *given, **named)


def retried(act: Callable[[], Result]) -> Result:
    """Result of `act`, tried again as clients do: where this process is held up for long, a lock it
    holds is waited for in vain.
    """
    while True:
        with suppress(*UNAVAILABLE):
            return act()
