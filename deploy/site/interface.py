"""The reference of the HTTP interface, from the OpenAPI document."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from api.app import create_app
from deploy.site import schemas
from deploy.site.markup import code, literal, page, prose, section, table
from fedcore.settings import Settings
from fedq.catalogue import build_catalog

NAME = "http.md"


def text() -> str:
    """The page."""
    document = create_app(Settings(_env_file=None)).openapi()
    definitions = document["components"]["schemas"]
    calls: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            calls.setdefault(operation["tags"][0], []).append(
                _call(verb.upper(), path, operation, definitions)
            )
    parts = [section(tag.capitalize(), *members) for tag, members in calls.items()]
    return page(
        "HTTP interface",
        document["info"]["description"].strip(),
        *parts,
        section("Shapes", *_shapes(definitions)),
    )


def _call(
    verb: str, path: str, operation: Mapping[str, Any], definitions: Mapping[str, schemas.Schema]
) -> str:
    parameters = [
        (
            code(given["name"]),
            given["in"],
            literal(schemas.kind_of(given["schema"], definitions)),
            literal(given["description"]),
        )
        for given in operation.get("parameters", ())
    ]
    answers = {
        status: answer
        for status, answer in operation["responses"].items()
        if int(status) < HTTPStatus.BAD_REQUEST
    }
    refusals = ", ".join(sorted(operation["responses"].keys() - answers.keys()))
    return section(
        f"`{verb} {path}`",
        f"**{literal(operation['summary'])}.** {prose(operation['description'])}",
        table(("parameter", "in", "holds", "what"), parameters),
        f"*Body:* {_shape(operation['requestBody'])}" if "requestBody" in operation else "",
        table(("answer", "shape"), ((status, _shape(answer)) for status, answer in answers.items())),
        f"*Refused or failed:* {refusals}, as [ProblemDetails](#problemdetails)." if refusals else "",
        level=3,
    )


def _shape(carrier: Mapping[str, Any]) -> str:
    """Content by media type, with a link to each schema."""
    found: dict[str, list[str]] = {}
    for media, content in carrier.get("content", {}).items():
        found.setdefault(", ".join(dict.fromkeys(_linked(content.get("schema", {})))), []).append(code(media))
    return "; ".join(
        " ".join(filter(None, (shape, "as", " or ".join(media)))).removeprefix("as ")
        for shape, media in found.items()
    )


def _linked(schema: schemas.Schema) -> Iterator[str]:
    for reference in schemas.references(schema):
        yield (
            "[a specification](specification.md)"
            if reference == "ExperimentSpec"
            else f"[{reference}](#{reference.lower()})"
        )


def _shapes(definitions: Mapping[str, schemas.Schema]) -> Iterator[str]:
    """Schemas of requests and responses; blocks of a specification have their own pages."""
    blocks = build_catalog().json_schema["$defs"].keys() | {"ExperimentSpec"}
    for name, schema in sorted(definitions.items()):
        if name not in blocks and schema.get("type") == "object":
            yield section(
                name,
                prose(schema.get("description")),
                schemas.fields(schema, definitions, without=()),
                level=3,
            )
