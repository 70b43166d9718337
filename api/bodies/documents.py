"""Request bodies: a JSON or YAML document, read, parsed and validated outside the event loop."""

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError

from api.bodies import positions
from api.bodies.flaws import flaws_of
from api.bodies.pointers import join
from api.problems import InvalidRequestError, UnreadableBodyError
from api.schemas import Flaw
from fedcore import yamls
from fedcore.errors import SpecificationError
from fedcore.settings import Settings

MAX_FLAWS = 100
MAX_WRITTEN, SHORT = 10_000, 20
"""Of more errors than so many those are told that are among the first so many entries of each list."""
OF_THE_WHOLE = frozenset({"value_error", "assertion_error", "too_short"})
MAX_FIELDS = 10_000
"""Of one block."""
SMALL_BYTES = 4_096
"""JSON of this size is read in less time than it takes to hand it to a thread and back."""
MAX_VALUES = 4_000_000
"""Counted with every use of a YAML alias."""
JSON, YAML = "application/json", "application/yaml"
MEDIA_TYPES = {JSON: JSON, YAML: YAML, "application/x-yaml": YAML, "text/yaml": YAML, "text/x-yaml": YAML}
"""What each Content-Type that is accepted means."""

Model = TypeVar("Model", bound=BaseModel)


class Parsed(NamedTuple):
    """A document as lists, dicts and scalars."""

    value: Any

    @property
    def digest(self) -> str:
        """The same for documents that say the same."""
        return sha256(json.dumps(self.value, sort_keys=True).encode()).hexdigest()


def choose_media_type(request: Request) -> str:
    """`JSON` or `YAML`, as the Content-Type says; JSON where it says nothing."""
    given = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if given not in MEDIA_TYPES:
        raise HTTPException(415, f"The body must be {JSON} or {YAML}, not {given}.")
    return MEDIA_TYPES[given]


async def read(request: Request, media_type: str) -> bytes:
    """The body. FastAPI's own limit would answer in plain text, so it is counted here."""
    settings: Settings = request.app.state.settings
    limit, setting = (settings.yaml_max_bytes, "YAML") if media_type == YAML else (settings.json_max_bytes, "JSON")
    declared = request.headers.get("content-length", "0")
    size, chunks = int(declared) if declared.isdecimal() else 0, []
    if size <= limit:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            chunks.append(chunk)
            if size > limit:
                break
    if size > limit:
        raise HTTPException(413, f"The body is larger than the {limit} bytes that {media_type} may have (FEDQ_{setting}_MAX_BYTES).")
    return b"".join(chunks)


async def parse(request: Request) -> Parsed:
    """The body as a document."""
    media_type = choose_media_type(request)
    body = await read(request, media_type)
    if media_type == JSON and len(body) <= SMALL_BYTES:
        return _parse(request, body, media_type)
    return await run_in_threadpool(_parse, request, body, media_type)


Document = Annotated[Parsed, Depends(parse)]


def validate(model: type[Model], value: Any, at: str = "") -> Model:
    """`value`, which stands at the pointer `at` of the body, as `model`; raises InvalidRequestError or SpecificationError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        flaws = flaws_of(_first(error, model, value), model, value, at)
        raise InvalidRequestError(
            flaws or [Flaw(pointer=at, detail=f"{error.error_count():,} values are not what they must be")]
        ) from error
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error


def body_of(*schemas: str) -> dict[str, Any]:
    """The OpenAPI text of a body that is one of `schemas`, names of components."""
    choices = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    content = {media_type: {"schema": schema} for media_type in (JSON, YAML)}
    return {"requestBody": {"required": True, "content": content}}


def _first(error: ValidationError, model: type[BaseModel], value: Any) -> list[Any]:
    """The first errors. Where there are very many, to write all of them down would take a thousand times the memory of the body."""
    if error.error_count() <= MAX_WRITTEN:
        return error.errors()[:MAX_FLAWS]
    try:
        model.model_validate(_shortened(value))
    except ValidationError as some:
        # Some only seem to be wrong because they were shortened.
        return [flaw for flaw in some.errors() if flaw["type"] not in OF_THE_WHOLE][:MAX_FLAWS]
    except SpecificationError:
        pass
    return []


def _shortened(value: Any) -> Any:
    """The same with the beginnings of its lists alone."""
    match value:
        case dict():
            return {key: _shortened(item) for key, item in value.items()}
        case list():
            return [_shortened(item) for item in value[:SHORT]]
        case _:
            return value


def _parse(request: Request, body: bytes, media_type: str) -> Parsed:
    value = _load(request, body, media_type)
    flaws = list(islice(_foreign_values(value), MAX_FLAWS))
    if flaws:
        raise InvalidRequestError(flaws)
    return Parsed(value)


def _load(request: Request, body: bytes, media_type: str) -> Any:
    try:
        text = body.decode()
        if media_type == JSON:
            return json.loads(text)
        value = yamls.load(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableBodyError(f"The body is not {media_type}: {error}", _unreadable(error)) from error
    positions.remember(request, text)
    return value


def _unreadable(error: Exception) -> Flaw:
    match error:
        case yamls.YamlError(detail=detail, place=yamls.Place(line, column)):
            return Flaw(pointer="", detail=detail, line=line, column=column)
        case json.JSONDecodeError(msg=detail, lineno=line, colno=column):
            return Flaw(pointer="", detail=detail, line=line, column=column)
        case _:
            return Flaw(pointer="", detail=str(error))


def _foreign_values(document: Any) -> Iterator[Flaw]:
    """What JSON has no place for, or no database: NaN and infinities, NUL and half characters, keys that are no text."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise HTTPException(413, f"The body holds more than {MAX_VALUES} values.")
        flaw = _foreign(value) if len(path) <= yamls.MAX_DEPTH else f"must not lie deeper than {yamls.MAX_DEPTH} levels"
        if flaw:
            yield Flaw(pointer=join(path), detail=flaw)
        elif isinstance(value, dict):
            waiting.extend(((*path, key), item) for key, item in value.items())
        elif isinstance(value, list):
            waiting.extend(((*path, index), item) for index, item in enumerate(value))


def _foreign(value: Any) -> str | None:
    match value:
        case float() if not isfinite(value):
            return f"must be a finite number, not {value}"
        case str() if not _storable(value):
            return "must not hold the character NUL or half of a surrogate pair"
        case dict() if len(value) > MAX_FIELDS:
            return f"a block may have {MAX_FIELDS:,} fields, and this one has {len(value):,}"
        case dict() if not all(isinstance(key, str) and _storable(key) for key in value):
            return "every key must be text"
        case _:
            return None


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
