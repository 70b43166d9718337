"""The key of a browser: a cookie that carries it where a page cannot send a header."""

from fastapi import Request, Response

from fedcore.errors import ForbiddenError
from fedcore.platform.access import Token

READING = frozenset({"GET", "HEAD", "OPTIONS"})
LASTS_S = 30 * 24 * 3600


def key_of(request: Request) -> str | None:
    """The key that the request's cookie holds; raises ForbiddenError where a foreign page makes it send what changes something."""
    key = request.cookies.get(_name(request))
    if key is not None and request.method not in READING:
        hold_same_origin(request)
    return key


def hold_same_origin(request: Request) -> None:
    """Raises ForbiddenError unless the browser says that a page of this service sends this."""
    if not _same_origin(request):
        raise ForbiddenError("this was not sent by a page of this service; programs send their key as `Authorization: Bearer fq_...`")


def keep(request: Request, response: Response, token: Token) -> None:
    """Have the browser send this key from now on, to this service alone, and show it to no script."""
    response.set_cookie(_name(request), token.text, max_age=LASTS_S, secure=_secure(request), httponly=True, samesite="strict")


def drop(request: Request, response: Response) -> None:
    """Have the browser forget the key."""
    response.delete_cookie(_name(request), secure=_secure(request), httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """By port: cookies, unlike origins, are the same for all services of a host."""
    return f"fedq-{request.url.port or (443 if _secure(request) else 80)}"


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _same_origin(request: Request) -> bool:
    """By what no script can set. Browsers leave `Sec-Fetch-Site` out where plain HTTP goes over a network."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host")
    return bool(host) and request.headers.get("origin", "").partition("://")[2] == host
