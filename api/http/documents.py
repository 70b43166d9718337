"""Request bodies: a JSON or YAML document, read, parsed and validated outside the event loop; and the
limit of all bodies.
"""

import json
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError

from api.http.dependencies import context_of, state_of
from api.http.problems import InvalidDocumentError, UnreadableBodyError
from fedcore import json_documents
from fedcore.errors import SpecificationError
from fedcore.spec import yaml_documents
from fedq.schemas import Flaw
from fedq.validation_errors import MAX_FLAWS, errors_of, foreign_values

SMALL_BYTES = 4_096
"""Parsing JSON up to this size takes less time than a switch to a thread and back."""
LARGE_BYTES = 1 << 16
"""Bodies above this size are handled one at a time. In larger YAML, errors have no line and column,
since that requires parsing it again.
"""
MAX_VALUES = 2_000_000
"""Maximum number of keys and values: an import of 16 MiB has 1.4 million, the work of a million
clients listed individually a million.
"""
MAX_YAML_PARTS = 50_000
"""Maximum number of keys, values and ends of blocks; PyYAML takes some 500 bytes and 5 microseconds of
processor time for each.
"""
JSON, YAML = "application/json", "application/yaml"
MAX_BYTES = {JSON: 16 << 20, YAML: 1 << 20}
"""Maximum size of a body. YAML is about fifty times slower to parse than JSON."""
MEDIA_TYPES = {JSON: JSON, YAML: YAML, "application/x-yaml": YAML, "text/yaml": YAML, "text/x-yaml": YAML}
"""Accepted values of Content-Type."""

Model = TypeVar("Model", bound=BaseModel)


class Parsed(NamedTuple):
    """A document as lists, dicts and scalars."""

    value: Any

    @property
    def digest(self) -> str:
        """Digest of the content, independent of its formatting."""
        return sha256(json.dumps(self.value, sort_keys=True).encode()).hexdigest()


def choose_media_type(request: Request) -> str:
    """Return `JSON` or `YAML` according to Content-Type (default: JSON)."""
    given = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if given not in MEDIA_TYPES:
        raise HTTPException(415, f"The body must be {JSON} or {YAML}, not {given}.")
    return MEDIA_TYPES[given]


def pieces_within(request: Request, limit: int, excess: str) -> AsyncIterator[bytes]:
    """Return the body piece by piece; raises HTTPException (413, `excess`) beyond `limit` bytes, at once
    for a body that is declared to be longer.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise HTTPException(413, excess)

    async def pieces() -> AsyncIterator[bytes]:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise HTTPException(413, excess)
            yield piece

    return pieces()


async def read(request: Request, media_type: str, limit: int) -> bytes:
    """Read the body, up to `limit` bytes. FastAPI's own limit would answer in plain text."""
    excess = f"The body exceeds {limit} bytes, the limit for {media_type}."
    return b"".join([piece async for piece in pieces_within(request, limit, excess)])


def document_within(limits: Mapping[str, int]) -> Any:
    """Return the dependency that parses a body of at most the bytes in `limits`, by media type.

    Large bodies are handled one at a time: one of 16 MiB takes some hundred megabytes.
    """

    async def parse(request: Request) -> AsyncIterator[Parsed]:
        media_type = choose_media_type(request)
        body = await read(request, media_type, limits[media_type])
        if media_type == JSON and len(body) <= SMALL_BYTES:
            yield _parse(request, body, media_type)
        elif len(body) <= LARGE_BYTES:
            yield await run_in_threadpool(_parse, request, body, media_type)
        else:
            async with state_of(request).document_gate:
                yield await run_in_threadpool(_parse, request, body, media_type)

    # It ends before the answer is sent: a client that reads slowly keeps no other waiting.
    return Depends(parse, scope="function")


Document = Annotated[Parsed, document_within(MAX_BYTES)]


def validate(model: type[Model], value: Any, at: str = "") -> Model:
    """Return `value`, at the pointer `at` of the body, as `model`.

    Raises InvalidDocumentError or SpecificationError.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidDocumentError(errors_of(error.errors()[:MAX_FLAWS], model, value, at)) from error
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error


def body_of(*schemas: str) -> dict[str, Any]:
    """Return the OpenAPI description of a body that is one of `schemas`, names of components."""
    choices = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    content = {media_type: {"schema": schema} for media_type in (JSON, YAML)}
    return {"requestBody": {"required": True, "content": content}}


def _parse(request: Request, body: bytes, media_type: str) -> Parsed:
    value = _load(request, body, media_type)
    flaws = list(islice(foreign_values(value), MAX_FLAWS))
    if flaws:
        raise InvalidDocumentError(flaws)
    return Parsed(value)


def _load(request: Request, body: bytes, media_type: str) -> Any:
    try:
        text = body.decode()
        if media_type == JSON:
            _check_extent(text)
            return json_documents.load(text)
        value = yaml_documents.load(text, MAX_YAML_PARTS)
    except (ValueError, RecursionError) as error:
        raise UnreadableBodyError(
            f"The body is not valid {media_type}: {error}", _unreadable(error)
        ) from error
    if len(body) <= LARGE_BYTES:
        context_of(request.scope).yaml = text
    return value


def _unreadable(error: Exception) -> Flaw:
    match error:
        case yaml_documents.YamlError(detail=detail, place=yaml_documents.SourcePosition(line, column)):
            return Flaw(pointer="", detail=detail, line=line, column=column)
        case json.JSONDecodeError(msg=detail, lineno=line, colno=column):
            return Flaw(pointer="", detail=detail, line=line, column=column)
        case _:
            return Flaw(pointer="", detail=str(error))


def _check_extent(text: str) -> None:
    """Raise HTTPException for too many keys and values, before they take memory.

    Each follows one of these characters, or the start. Characters in strings count too, so this is
    an upper bound.
    """
    if sum(map(text.count, ",:[{")) >= MAX_VALUES:
        raise HTTPException(413, f"The body contains more than {MAX_VALUES:,} keys and values.")
