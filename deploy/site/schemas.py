"""JSON Schema in words: what a field may hold, its bounds and its default."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deploy.site.markup import code, literal, table

Schema = Mapping[str, Any]
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_SIZES = {
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}
REQUIRED = "required"


def fields(schema: Schema, definitions: Mapping[str, Schema], without: Sequence[str] = ("kind",)) -> str:
    """A table of the fields of an object; empty where it has none."""
    properties = {name: field for name, field in schema.get("properties", {}).items() if name not in without}
    required = set(schema.get("required", ()))
    rows = [
        (
            code(name),
            literal(kind_of(field, definitions)),
            _default(field, required=name in required),
            literal(field.get("description", "")),
        )
        for name, field in properties.items()
    ]
    return table(("field", "holds", "default", "what"), rows)


def references(schema: Schema) -> Iterator[str]:
    """The names of the definitions that a value, or an item of it, may be one of."""
    if "$ref" in schema:
        yield _name(schema["$ref"])
    for choice in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        yield from references(choice)
    if isinstance(schema.get("items"), dict):
        yield from references(schema["items"])


def kind_of(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Type of a value: `integer ≥ 1`, one of `a`, `b`, or a block."""
    match schema:
        case {"$ref": str(reference)}:
            words = _block(_name(reference), definitions)
        case {"const": value}:
            words = code(value)
        case {"enum": values}:
            words = ", ".join(map(code, values))
        case {"anyOf": choices} | {"oneOf": choices}:
            words = " or ".join(dict.fromkeys(_choices(choices, definitions)))
        case {"type": "array"}:
            words = _sequence(schema, definitions)
        case {"type": "object", "additionalProperties": dict(values)}:
            words = f"map to {kind_of(values, definitions)}"
        case {"type": str(name)}:
            words = " ".join([name, *_limits(schema, _BOUNDS, "{} {}"), *_bounded(schema)])
        case _:
            words = "anything"
    return words


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _block(name: str, definitions: Mapping[str, Schema]) -> str:
    found = definitions[name]
    kind = found.get("properties", {}).get("kind", {}).get("const")
    if kind is not None:
        return f"`{{kind: {kind}}}`"
    return "block" if found.get("type") == "object" else kind_of(found, definitions)


def _choices(choices: Sequence[Schema], definitions: Mapping[str, Schema]) -> Iterator[str]:
    for choice in choices:
        if choice.get("type") != "null":
            yield kind_of(choice, definitions)


def _sequence(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    items = schema.get("items") or {"anyOf": schema.get("prefixItems", [{}])}
    return " ".join([f"list of {kind_of(items, definitions)}", *_bounded(schema)])


def _bounded(schema: Schema) -> list[str]:
    found = [
        words.format(f"{schema[name]:,}")
        for name, words in _SIZES.items()
        if name in schema and not _trivial(name, schema[name])
    ]
    return [f"({', '.join(found)})"] if found else []


def _trivial(name: str, value: int) -> bool:
    return name == "minLength" and value == 1


def _limits(schema: Schema, names: Mapping[str, str], form: str) -> list[str]:
    return [form.format(sign, f"{schema[name]:,}") for name, sign in names.items() if name in schema]


def _default(field: Schema, *, required: bool) -> str:
    if required:
        return REQUIRED
    default = field.get("default", field.get("const"))
    return (
        ""
        if default in (None, "", [], {}) or isinstance(default, dict)
        else code(json.dumps(default).strip('"'))
    )
