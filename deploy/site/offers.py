"""The reference of presets."""

from collections.abc import Iterator

from deploy.site.markup import code, literal, page, section, table
from fedcore import presets

NAME = "presets.md"


def text() -> str:
    """The page."""
    return page(
        "Presets",
        "Specifications that ship with FedQ: `fedq submit --preset NAME`, `fedq reproduce SHEET`.",
        *_sheets(),
    )


def _sheets() -> Iterator[str]:
    for name, sheet in presets.sheets().items():
        members = [*presets.presets_of(name, small=False), *presets.presets_of(name, small=True)]
        rows = [
            (code(preset.name), literal(preset.title), "; ".join(map(literal, preset.departures)))
            for preset in members
        ]
        yield section(
            code(name),
            literal(sheet.title),
            f"*Source:* {literal(sheet.source)}",
            table(("preset", "what it shows", "departures"), rows),
        )
