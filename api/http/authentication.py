"""Authentication: the API key of a request or of a browser's cookie, and the scopes it has."""

import time
from asyncio import Task, create_task, shield
from contextvars import Context
from typing import Annotated, NamedTuple

from fastapi import Depends, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from api.http.rate_limit import RateLimiter
from fedcore.errors import AuthenticationError, ForbiddenError
from fedcore.platform.access import Principal, Scope, Token
from fedcore.platform.store import Database, keys

READING = frozenset({"GET", "HEAD", "OPTIONS"})
LASTS_S = 30 * 24 * 3600


def key_of(request: Request) -> str | None:
    """The key that the request's cookie holds.

    Raises ForbiddenError where a foreign page makes it send what changes something.
    """
    key = request.cookies.get(_name(request))
    if key is not None and request.method not in READING:
        hold_same_origin(request)
    return key


def hold_same_origin(request: Request) -> None:
    """Raises ForbiddenError unless the browser says that a page of this service sends this."""
    if not _same_origin(request):
        raise ForbiddenError(
            "cookies are accepted from pages of this service only; programs send their key as `Authorization:"
            " Bearer fq_...`"
        )


def keep(request: Request, response: Response, token: Token) -> None:
    """Have the browser send this key from now on, to this service alone, and show it to no
    script.
    """
    response.set_cookie(
        _name(request), token.text, max_age=LASTS_S, secure=_secure(request), httponly=True, samesite="strict"
    )


def drop(request: Request, response: Response) -> None:
    """Have the browser forget the key."""
    response.delete_cookie(_name(request), secure=_secure(request), httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """By port: cookies, unlike origins, are the same for all services of a host."""
    return f"fedq-{request.url.port or (443 if _secure(request) else 80)}"


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _same_origin(request: Request) -> bool:
    """By what no script can set.

    Browsers leave `Sec-Fetch-Site` out where plain HTTP goes over a network.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host")
    return bool(host) and request.headers.get("origin", "").partition("://")[2] == host


REMEMBERED_S = 2.0
"""A key that was found valid is taken for valid this long: so long its revocation may take to reach
every process.
"""
MAX_REMEMBERED = 10_000

_bearer = HTTPBearer(
    scheme_name="key",
    bearerFormat="fq_<id>_<secret>",
    description=(
        "API key, created with `fedq key create`. An embedded stack stores its key in the file `api-key` of"
        " its folder. The web pages send it as a cookie, which is accepted from them only."
    ),
    auto_error=False,
)


class _Known(NamedTuple):
    until: float
    principal: Principal


class KeyAuthenticator:
    """Verifies keys, and remembers for a moment those it found valid.

    Belongs to one event loop; changes in place.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, Task[Principal]] = {}

    async def recognise(self, token: Token) -> Principal:
        """Whose key this is, by the database, or by what it said a moment ago.

        Raises AuthenticationError.
        """
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


async def current_principal(request: Request, given: HTTPAuthorizationCredentials | None) -> Principal:
    """Whoever sent the request.

    Raises AuthenticationError, RateError, and ForbiddenError for what a foreign page makes a
    browser send.
    """
    key = key_of(request) if given is None else given.credentials
    if key is None:
        raise AuthenticationError("requires an API key in the header `Authorization: Bearer fq_...`")
    request.state.principal = principal = await authenticate(request, Token.parse(key))
    rates: RateLimiter = request.app.state.rates
    await rates.take(principal.key_id)
    return principal


async def authenticate(request: Request, token: Token) -> Principal:
    """Whose key this is; raises AuthenticationError."""
    return await authenticator_of(request).recognise(token)


async def require_scope(
    needed: SecurityScopes,
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    """Whoever sent the request, as `identify` has it, if their key has the scope that is needed.

    Raises ForbiddenError otherwise.
    """
    principal = await current_principal(request, given)
    for scope in needed.scopes:
        if not principal.scope.covers(Scope(scope)):
            raise ForbiddenError(f"requires a key of scope `{scope}`; this key has `{principal.scope}`")
    return principal


def authenticator_of(request: Request) -> KeyAuthenticator:
    """The application's."""
    doorkeeper: KeyAuthenticator = request.app.state.doorkeeper
    return doorkeeper


# First among an endpoint's parameters: what a stranger sends is not even read.
Reader = Annotated[Principal, Security(require_scope, scopes=[Scope.READ])]
Submitter = Annotated[Principal, Security(require_scope, scopes=[Scope.SUBMIT])]
Administrator = Annotated[Principal, Security(require_scope, scopes=[Scope.ADMIN])]
