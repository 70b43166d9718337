"""Authentication: the API key of a request or of a browser's cookie, and the scopes it has."""

import time
from typing import Annotated, NamedTuple

from fastapi import Depends, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from api.http.dependencies import context_of, state_of
from api.http.parameters import refuse_unknown
from fedcore.errors import AuthenticationError, ForbiddenError
from fedcore.platform.access import Principal, Scope, Token
from fedcore.platform.store import Database, keys

READING = frozenset({"GET", "HEAD", "OPTIONS"})
LASTS_S = 30 * 24 * 3600
CODE = "code"
"""Scope of a key that may send code bundles; the others are `Scope`."""


def key_of(request: Request) -> str | None:
    """Return the key in the request's cookie.

    Raises ForbiddenError if a foreign page makes the browser send a change.
    """
    key = request.cookies.get(_name(request))
    if key is not None and request.method not in READING:
        hold_same_origin(request)
    return key


def hold_same_origin(request: Request) -> None:
    """Raise ForbiddenError unless the browser says that a page of this service sends this."""
    if not _same_origin(request):
        raise ForbiddenError(
            "cookies are accepted from pages of this service only; programs send their key as `Authorization:"
            " Bearer fq_...`"
        )


def keep(request: Request, response: Response, token: Token) -> None:
    """Store the key in a cookie of this service that no script can read."""
    response.set_cookie(
        _name(request), token.text, max_age=LASTS_S, secure=_secure(request), httponly=True, samesite="strict"
    )


def drop(request: Request, response: Response) -> None:
    """Delete the cookie."""
    response.delete_cookie(_name(request), secure=_secure(request), httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """Return the name of the cookie. It contains the port, since cookies are shared by all services
    of a host.
    """
    return f"fedq-{request.url.port or (443 if _secure(request) else 80)}"


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _same_origin(request: Request) -> bool:
    """Return whether the request comes from a page of this service, by headers that no script can
    set.

    Browsers omit `Sec-Fetch-Site` for plain HTTP over a network.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host")
    return bool(host) and request.headers.get("origin", "").partition("://")[2] == host


REMEMBERED_S = 2.0
"""A valid key is remembered this long, so a revocation takes up to this long to reach every
process.
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
    """Verifies keys, and remembers valid ones for a moment.

    Belongs to one event loop; changes in place.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, _Known] = {}

    async def authenticate(self, token: Token) -> Principal:
        """Return the owner and scope of a key; raises AuthenticationError."""
        # An answer from before `forget` must not be remembered after it.
        remembered, now = self._known, time.monotonic()
        known = remembered.get(token.digest)
        if known is not None and known.until > now:
            return known.principal
        principal = await run_in_threadpool(self._verify, token)
        if len(remembered) >= MAX_REMEMBERED:
            remembered.clear()
        remembered[token.digest] = _Known(now + REMEMBERED_S, principal)
        return principal

    def forget(self) -> None:
        """Verify every key again: one was edited or revoked."""
        self._known = {}

    def _verify(self, token: Token) -> Principal:
        with self._database.reading() as session:
            record, to_note = keys.verify(session, token)
        if to_note:
            with self._database.transaction() as session:
                keys.note_use(session, record.id)
        return Principal(record.id, record.owner, record.scope, record.code)


async def current_principal(request: Request, given: HTTPAuthorizationCredentials | None) -> Principal:
    """Return the owner of the key that the request carries.

    Raises AuthenticationError, RateError, and ForbiddenError for requests that a foreign page makes
    a browser send.
    """
    key = key_of(request) if given is None else given.credentials
    if key is None:
        raise AuthenticationError("requires an API key in the header `Authorization: Bearer fq_...`")
    state = state_of(request)
    principal = await state.authenticator.authenticate(Token.parse(key))
    context = context_of(request.scope)
    context.principal = principal
    await state.rate_limiter.take(principal.key_id, context.headers)
    return principal


async def require_scope(
    needed: SecurityScopes,
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    """Return the `current_principal` if its key has the scopes that are needed.

    Raises ForbiddenError otherwise, and InvalidDocumentError for unknown query parameters: here,
    since strangers are told nothing but that they need a key.
    """
    principal = await current_principal(request, given)
    for scope in needed.scopes:
        if scope == CODE and not (principal.code and principal.scope.covers(Scope.SUBMIT)):
            raise ForbiddenError("requires a key of scope `code`; create one with `fedq key create --code`")
        if scope != CODE and not principal.scope.covers(Scope(scope)):
            raise ForbiddenError(f"requires a key of scope `{scope}`; this key has `{principal.scope}`")
    refuse_unknown(request)
    return principal


# First among an endpoint's parameters: what a stranger sends is not even read.
Reader = Annotated[Principal, Security(require_scope, scopes=[Scope.READ])]
Submitter = Annotated[Principal, Security(require_scope, scopes=[Scope.SUBMIT])]
Administrator = Annotated[Principal, Security(require_scope, scopes=[Scope.ADMIN])]
Sender = Annotated[Principal, Security(require_scope, scopes=[CODE])]
