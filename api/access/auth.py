"""Who asks: the API key of a request, and what it allows."""

import time
from asyncio import Task, create_task, shield
from contextvars import Context
from typing import Annotated, NamedTuple

from fastapi import Depends, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from api.access import cookies
from api.access.rates import Rates
from fedcore.errors import AuthenticationError, ForbiddenError
from fedcore.platform.access import Principal, Scope, Token
from fedcore.platform.store import Database, keys

REMEMBERED_S = 2.0
"""A key that was found valid is taken for valid this long: so long its revocation may take to reach every process."""
MAX_REMEMBERED = 10_000

_bearer = HTTPBearer(
    scheme_name="key",
    bearerFormat="fq_<id>_<secret>",
    description="An API key. `fedq key create` makes one; an embedded stack keeps its own in `api-key` in its folder. "
    "Pages carry it as a cookie, which is taken from them alone.",
    auto_error=False,
)


class _Known(NamedTuple):
    until: float
    principal: Principal


class Doorkeeper:
    """Verifies keys, and remembers for a moment those it found valid. Belongs to one event loop; changes in place."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, Task[Principal]] = {}

    async def recognise(self, token: Token) -> Principal:
        """Whose key this is, by the database, or by what it said a moment ago; raises AuthenticationError."""
        known, now = self._known.get(token.digest), time.monotonic()
        if known is None or known.until <= now:
            return await shield(self._ask(token))
        if known.until - now < REMEMBERED_S / 2:
            # Asked about before that is needed, a key that is in use keeps nobody waiting.
            self._ask(token)
        return known.principal

    def forget(self) -> None:
        """Ask the database about every key again: one was revoked."""
        # What is being answered just now goes into the old ones.
        self._known, self._asking = {}, {}

    def _ask(self, token: Token) -> Task[Principal]:
        """Verify a key, once for all who show it meanwhile."""
        known, asking, until = self._known, self._asking, time.monotonic() + REMEMBERED_S

        def note(answer: Task[Principal]) -> None:
            asking.pop(token.digest, None)
            if len(known) >= MAX_REMEMBERED:
                known.clear()
            if not answer.cancelled() and answer.exception() is None:
                known[token.digest] = _Known(until, answer.result())

        if token.digest not in asking:
            # In a context of its own: it is part of no request's log lines and trace.
            asking[token.digest] = create_task(run_in_threadpool(self._verify, token), context=Context())
            asking[token.digest].add_done_callback(note)
        return asking[token.digest]

    def _verify(self, token: Token) -> Principal:
        with self._database.reading() as session:
            record, to_note = keys.verify(session, token)
        if to_note:
            with self._database.transaction() as session:
                keys.note_use(session, record.id)
        return Principal(record.id, record.owner, record.scope)


async def identify(request: Request, given: HTTPAuthorizationCredentials | None) -> Principal:
    """Whoever sent the request; raises AuthenticationError, RateError, and ForbiddenError for what a foreign page makes a browser send."""
    key = cookies.key_of(request) if given is None else given.credentials
    if key is None:
        raise AuthenticationError("this needs an API key, as the header `Authorization: Bearer fq_...`")
    request.state.principal = principal = await recognise(request, Token.parse(key))
    rates: Rates = request.app.state.rates
    await rates.take(principal.key_id)
    return principal


async def recognise(request: Request, token: Token) -> Principal:
    """Whose key this is; raises AuthenticationError."""
    return await doorkeeper_of(request).recognise(token)


async def allow(
    needed: SecurityScopes, request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    """Whoever sent the request, as `identify` has it, if their key has the scope that is needed; raises ForbiddenError otherwise."""
    principal = await identify(request, given)
    for scope in needed.scopes:
        if not principal.scope.covers(Scope(scope)):
            raise ForbiddenError(f"this needs a key of scope `{scope}`; the one given has `{principal.scope}`")
    return principal


def doorkeeper_of(request: Request) -> Doorkeeper:
    """The application's."""
    doorkeeper: Doorkeeper = request.app.state.doorkeeper
    return doorkeeper


# First among an endpoint's parameters: what a stranger sends is not even read.
Reader = Annotated[Principal, Security(allow, scopes=[Scope.READ])]
Submitter = Annotated[Principal, Security(allow, scopes=[Scope.SUBMIT])]
Administrator = Annotated[Principal, Security(allow, scopes=[Scope.ADMIN])]
