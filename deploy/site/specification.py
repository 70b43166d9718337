"""The reference of the specification: a page for each block, each kind with its formula, source,
fields and defaults.
"""

from collections.abc import Iterator, Mapping

from deploy.site import schemas
from deploy.site.markup import code, literal, page, prose, section, table
from fedcore.algorithms import ALGORITHMS
from fedcore.block import kind_of
from fedcore.measures import EXTENSIONS, GROUPS
from fedq.catalogue import build_catalog
from fedq.schemas import CatalogBlock, Kind

ROOT = "specification"


def pages() -> Iterator[tuple[str, str]]:
    """Names and texts of the pages."""
    schema = build_catalog().json_schema
    definitions = schema["$defs"]
    for name, field in schema["properties"].items():
        if parts := list(_parts(name, field, definitions)):
            yield f"{ROOT}/{name}.md", page(code(name), literal(field["description"]), *parts)
    plain = {
        name: field
        for name, field in schema["properties"].items()
        if not list(_parts(name, field, definitions))
    }
    blocks = [
        (f"[`{name}`]({ROOT}/{name}.md)", literal(field["description"]))
        for name, field in schema["properties"].items()
        if name not in plain
    ]
    top = schemas.fields({"properties": plain, "required": schema["required"]}, definitions)
    yield (
        f"{ROOT}.md",
        page(
            "The specification",
            "An experiment is one document of these blocks and fields, in YAML, JSON or Python.",
            table(("block", "what it says"), blocks),
            section("Fields beside the blocks", top),
        ),
    )


def _parts(name: str, field: schemas.Schema, definitions: Mapping[str, schemas.Schema]) -> Iterator[str]:
    """Sections on a block: its own fields, and its kinds."""
    for title, definition in _objects(field, definitions):
        if table_of := schemas.fields(definition, definitions):
            yield (
                table_of
                if title is None
                else section(title, prose(definition.get("description")), table_of, level=3)
            )
    if name == "algorithm":
        yield _algorithms()
    if name == "evaluation":
        yield from _measures()
    for block in build_catalog().blocks:
        if block.path == name or block.path.startswith(f"{name}."):
            yield section(code(block.path) if block.path != name else "Kinds", *_kinds(block))


def _algorithms() -> str:
    """Table of the properties that algorithms declare."""
    heads = ("kind", "kept by a client", "sent beside the model", "default weights", "fixed point")
    rows = []
    for member in ALGORITHMS:
        spec = member.model_validate({"kind": kind_of(member), **member.example})
        rule = spec.rule()
        sent = [*map(code, rule.sent), *(["full gradient"] if spec.exchange() else [])]
        weights = "its own" if member.own_weights else member.weighting or "of the scheme"
        kept = ", ".join(map(code, (*rule.memory, *spec.models().memory)))
        rows.append(
            (code(kind_of(member)), kept, ", ".join(sent), weights, getattr(member, "fixed_point", ""))
        )
    return table(heads, rows)


def _measures() -> Iterator[str]:
    """Tables of the measures, by what they are taken of."""
    titles = {
        "model": "Measures of the global model, every `every` rounds",
        "predictions": "Measures of the global model's predictions on the test set, every `every` rounds",
        "population": "Measures of the global model by client, every `population_every` rounds",
        "round": "Measures of the clients of the round, every `every` rounds",
    }
    for of, title in titles.items():
        groups = [group for group in (*GROUPS, *EXTENSIONS) if group.of == of]
        measures = [measure for group in groups for measure in group.measures()]
        rows = [(code(each.name), literal(each.meaning), literal(each.null_if)) for each in measures]
        yield section(title, table(("measure", "meaning", "null if"), rows))


def _objects(
    field: schemas.Schema, definitions: Mapping[str, schemas.Schema]
) -> Iterator[tuple[str | None, schemas.Schema]]:
    """The blocks without a kind that a field holds, and those in them.

    The first goes without a title.
    """
    seen: dict[str, str | None] = {}
    waiting: list[tuple[str | None, schemas.Schema]] = [(None, field)]
    while waiting:
        title, schema = waiting.pop(0)
        for reference in schemas.references(schema):
            found = definitions[reference]
            if (
                reference not in seen
                and found.get("type") == "object"
                and "kind" not in found.get("properties", {})
            ):
                seen[reference] = title
                yield title, found
                waiting += [(code(name), below) for name, below in found["properties"].items()]


def _kinds(block: CatalogBlock) -> Iterator[str]:
    common = _common(block)
    if common:
        yield f"Every kind takes {' and '.join(map(code, common))}:"
        first = block.kinds[0].json_schema
        yield schemas.fields(
            {**first, "properties": {name: first["properties"][name] for name in common}},
            first.get("$defs", {}),
        )
    for kind in block.kinds:
        own = schemas.fields(kind.json_schema, kind.json_schema.get("$defs", {}), without=("kind", *common))
        yield section(code(kind.kind), prose(kind.description), _source(kind), own, level=3)


def _common(block: CatalogBlock) -> list[str]:
    """The fields that all kinds of a block have, and describe alike."""
    first, *others = [kind.json_schema["properties"] for kind in block.kinds]
    return [
        name
        for name, field in first.items()
        if name != "kind" and others and all(other.get(name) == field for other in others)
    ]


def _source(kind: Kind) -> str:
    return f"*Source:* {literal(kind.source)}." if kind.source else ""
