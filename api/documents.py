"""Request bodies: a JSON or YAML document, read, parsed and validated outside the event loop."""

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeVar

import yaml
from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError

from api.pointers import join
from api.problems import InvalidRequestError, flaws_of
from api.schemas import Flaw
from fedcore.errors import SpecificationError

MAX_BODY_BYTES = 16 * 2**20
MAX_DEPTH = 32
MAX_FLAWS = 100
MAX_VALUES = 4_000_000
"""Counted with every use of a YAML alias, which else could unfold without end."""
JSON_TYPES = frozenset({"application/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})

Model = TypeVar("Model", bound=BaseModel)


class Parsed(NamedTuple):
    """A document as lists, dicts and scalars."""

    value: Any

    @property
    def digest(self) -> str:
        """The same for documents that say the same."""
        return sha256(json.dumps(self.value, sort_keys=True).encode()).hexdigest()


async def read(request: Request) -> bytes:
    """The body. FastAPI's own limit would answer in plain text, so it is counted here."""
    declared = request.headers.get("content-length", "0")
    size, chunks = int(declared) if declared.isdecimal() else 0, []
    if size <= MAX_BODY_BYTES:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            chunks.append(chunk)
            if size > MAX_BODY_BYTES:
                break
    if size > MAX_BODY_BYTES:
        raise HTTPException(413, f"The body is larger than the {MAX_BODY_BYTES} bytes it may have.")
    return b"".join(chunks)


def parse(request: Request, body: Annotated[bytes, Depends(read)]) -> Parsed:
    """The body as the document its Content-Type says; JSON where it says nothing."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type not in JSON_TYPES | YAML_TYPES:
        raise HTTPException(415, f"The body must be application/json or application/yaml, not {media_type}.")
    value = _load(body, is_yaml=media_type in YAML_TYPES)
    flaws = list(islice(_foreign_values(value), MAX_FLAWS))
    if flaws:
        raise InvalidRequestError(flaws)
    return Parsed(value)


Document = Annotated[Parsed, Depends(parse)]


def validate(model: type[Model], value: Any, at: str = "") -> Model:
    """`value`, which stands at the pointer `at` of the body, as `model`; raises InvalidRequestError or SpecificationError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(flaws_of(error.errors()[:MAX_FLAWS], value, at)) from error
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error


def body_of(*schemas: str) -> dict[str, Any]:
    """The OpenAPI text of a body that is one of `schemas`, names of components."""
    choices = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    content = {media_type: {"schema": schema} for media_type in ("application/json", "application/yaml")}
    return {"requestBody": {"required": True, "content": content}}


def _load(body: bytes, *, is_yaml: bool) -> Any:
    try:
        text = body.decode()
        return yaml.load(text, yaml.CSafeLoader) if is_yaml else json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise HTTPException(400, f"The body is not {'YAML' if is_yaml else 'JSON'}: {error}") from error


def _foreign_values(document: Any) -> Iterator[Flaw]:
    """What JSON has no place for, or no database: NaN and infinities, NUL and half characters, YAML's dates and odd keys."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise HTTPException(413, f"The body holds more than {MAX_VALUES} values.")
        flaw = _foreign(value) if len(path) <= MAX_DEPTH else f"must not lie deeper than {MAX_DEPTH} levels"
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
        case dict() if not all(isinstance(key, str) and _storable(key) for key in value):
            return "every key must be text"
        case None | str() | bool() | int() | float() | list() | dict():
            return None
        case _:
            return f"a {type(value).__name__} has no place here; quote it to make it text"


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
