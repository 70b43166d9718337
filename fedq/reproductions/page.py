"""All that is kept of what came out of the sheets, as one page of Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from fedcore import presets
from fedcore.block import Block
from fedcore.presets.sheet import SMALL, Sheet, variants
from fedcore.spec import yaml_documents
from fedq.reproductions.records import Record, kept_of
from fedq.reproductions.report import section

NOT_RUN = "not-run.yaml"
NOT_YET = "not yet"
"""Where nobody has said why; a test sees to it that somebody does."""
PICTURE = "webp"


class NotRun(Block):
    """Presets that were not run here."""

    because: str
    """Why not."""
    presets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Their names."""


def page(folder: Path, at: str) -> str:
    """Markdown of all records in `folder`; `at` is the folder's address relative to the page."""
    records = {name: kept for name in presets.names() if (kept := kept_of(name, folder)) is not None}
    reasons = {name: reason.because for reason in not_run(folder) for name in reason.presets}
    sheets = {name: sheet for name, sheet in presets.sheets().items() if sheet.claims or sheet.published}
    lines = list(_overview(sheets, records))
    for name, sheet in sheets.items():
        lines += _sheet(
            name, sheet, records, reasons, [f"{at}/{file.name}" for file in pictures(name, folder)]
        )
    return "\n".join(lines) + "\n"


def not_run(folder: Path) -> Sequence[NotRun]:
    """Presets without a record, and the reasons."""
    return TypeAdapter(tuple[NotRun, ...]).validate_python(
        yaml_documents.load((folder / NOT_RUN).read_text(encoding="utf-8"))
    )


def pictures(sheet: str, folder: Path) -> list[Path]:
    """The figures of a sheet that there are, the one in full first."""
    return [path for small in (False, True) if (path := picture(sheet, folder, small=small)).exists()]


def picture(sheet: str, folder: Path, *, small: bool) -> Path:
    """Path of the figure of a sheet."""
    return folder / f"{sheet}{f'-{SMALL}' if small else ''}.{PICTURE}"


def _overview(sheets: Mapping[str, Sheet], records: Mapping[str, Record]) -> Iterator[str]:
    yield from _totals(sheets, records)
    yield "| figure or table | in full: panels run, claims that hold | small: panels run, claims that hold |"
    yield "| --- | --- | --- |"
    for name, sheet in sheets.items():
        full, small = (
            [name + variant.suffix for variant in variants(sheet) if variant.small is small]
            for small in (False, True)
        )
        yield f"| [`{name}`](#{name}) | {_tally(full, records)} | {_tally(small, records)} |"


def _totals(sheets: Mapping[str, Sheet], records: Mapping[str, Record]) -> Iterator[str]:
    for small, form in ((False, "in full"), (True, "in the small form")):
        names = [
            name + variant.suffix
            for name, sheet in sheets.items()
            for variant in variants(sheet)
            if variant.small is small
        ]
        run = [records[name] for name in names if name in records]
        claims = [claim for kept in run for claim in kept.claims]
        holding = sum(bool(claim.holds) for claim in claims)
        yield (
            f"- {form}: {len(run)} of {len(names)} panels run, {len(names) - len(run)} not; {holding} of"
            f" {len(claims)} claims hold"
        )
    yield ""


def _tally(names: Sequence[str], records: Mapping[str, Record]) -> str:
    run = [records[name] for name in names if name in records]
    claims = [claim for kept in run for claim in kept.claims]
    if not names:
        return "as in full"
    return f"{len(run)} of {len(names)}" + (
        f", {sum(bool(claim.holds) for claim in claims)} of {len(claims)}" if run else ""
    )


def _sheet(
    name: str, sheet: Sheet, records: Mapping[str, Record], reasons: Mapping[str, str], shown: Sequence[str]
) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield f"{sheet.title}. {sheet.source}."
    yield from (f"\n![{sheet.title}]({picture})" for picture in shown)
    for preset in (presets.load(name + variant.suffix) for variant in variants(sheet)):
        if preset.name in records:
            yield f"\n### {preset.name}\n"
            yield from section(records[preset.name], preset)
    missing = [
        preset for preset in (name + variant.suffix for variant in variants(sheet)) if preset not in records
    ]
    if missing:
        yield "\nNot run:\n"
        yield from (f"- `{preset}`: {reasons.get(preset, NOT_YET)}" for preset in missing)
