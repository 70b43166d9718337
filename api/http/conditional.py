"""Conditional requests: entity tags of what GET returns, `If-None-Match`, and `If-Match` of changes.

A tag identifies the state of a resource. It is weak (RFC 9110, section 8.8.1), since compression
sends the same state as other bytes. `If-Match` therefore accepts weak tags: what a client read
compressed, it can change.
"""

import re
from hashlib import sha256
from typing import Annotated

from fastapi import Header, HTTPException
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from api.http.middleware import HttpMiddleware

DIGITS = 32
_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_OF_CONTENT = ("content-length", "content-type")


def entity_tag(body: bytes) -> str:
    """Return the ETag of a response body."""
    return f'W/"{sha256(body).hexdigest()[:DIGITS]}"'


def is_listed(tag: str, header: str) -> bool:
    """Return whether a header `If-Match` or `If-None-Match` lists this tag, or is `*`."""
    return header.strip() == "*" or tag.removeprefix("W/").strip('"') in _TAG.findall(header)


class ConditionalGet(HttpMiddleware):
    """Middleware that gives what GET returns below `/v1` an ETag, and answers 304 to those who have
    it. Streams have none.
    """

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "GET" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        known = ", ".join(Headers(scope=scope).getlist("if-none-match"))
        start: Message | None = None

        async def tag(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] == 200:
                start = message
                return
            if start is not None:
                begun, start = start, None
                if not message.get("more_body", False):
                    message = _tagged(begun, message, known)
                await send(begun)
            await send(message)

        await self._app(scope, receive, tag)


def _tagged(start: Message, message: Message, known: str) -> Message:
    """Add the tag to the head of a response, which becomes 304 if the client knows it; returns the
    body to send.
    """
    headers = MutableHeaders(scope=start)
    headers["ETag"] = entity_tag(message.get("body", b""))
    headers.setdefault("Cache-Control", "private, no-cache")
    if not known or not is_listed(headers["ETag"], known):
        return message
    start["status"] = 304
    for name in _OF_CONTENT:
        del headers[name]
    return {**message, "body": b""}


IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1_000,
        description="Change nothing unless the resource still has this ETag, which GET returned.",
        examples=['W/"2cf24dba5fb0a30e26e83b2ac5b9e29e"'],
    ),
]


def check_match(if_match: str, answer: BaseModel) -> None:
    """Hold what GET would return now to a header `If-Match`; raises HTTPException (412)."""
    if not is_listed(entity_tag(answer.model_dump_json().encode()), if_match):
        raise HTTPException(412, "It has changed since it was read with this ETag. Read it again.")
