"""Reports on reproduced sheets as Markdown."""

from collections.abc import Iterator

from fedcore.presets import PresetSpec
from fedq.reproductions.sheets import Record, SheetReproduction, record
from fedq.results.presentation import counted, grounds, measured, published, subject, verdict
from fedq.schemas import ClaimResult, PublishedTable


def report(reproduction: SheetReproduction, picture: str | None) -> str:
    """Report on a sheet: runs, figure, published numbers, and a verdict for each claim."""
    return "\n".join(_lines(reproduction, picture)) + "\n"


def _lines(reproduction: SheetReproduction, picture: str | None) -> Iterator[str]:
    sheet = reproduction.sheet
    yield f"# {sheet.title}"
    yield ""
    yield (
        f"{sheet.source}. Run again by `fedq reproduce"
        f" {reproduction.name}{' --small' if reproduction.small else ''}`."
    )
    if picture:
        yield f"\n![{sheet.title}]({picture})"
    for part in reproduction.parts:
        if len(reproduction.parts) > 1:
            yield f"\n## {part.title[0].upper()}{part.title[1:]}"
        yield ""
        yield from section(record(part), part.preset)


def section(kept: Record, preset: PresetSpec) -> Iterator[str]:
    """Section on one panel: its runs, departures from the source, and outcome."""
    data, engines = ", ".join(kept.data) or "its own data", " and ".join(kept.engines)
    seeds = f"seed{'s' if len(kept.seeds) > 1 else ''} {', '.join(map(str, kept.seeds))}"
    yield (
        f"Preset `{kept.preset}`, version {kept.version}: {data}; {counted(kept.rounds, 'round')}, {seeds};"
        f" {engines}; {kept.status}."
    )
    if preset.departures:
        yield "\nDepartures from the source:\n"
        yield from (f"- {departure}" for departure in preset.departures)
    if kept.claims:
        yield "\n| claim | | what came out |\n| --- | --- | --- |"
        yield from map(_claim, kept.claims)
    for table in kept.published:
        yield from _table(table)
    if kept.diverged:
        diverged = (
            f"{arm} ({count} of {counted(len(kept.seeds), 'run')})" for arm, count in kept.diverged.items()
        )
        yield f"\nDiverged: {', '.join(diverged)}."
    if kept.unsuccessful:
        yield "\nRuns that did not succeed:\n"
        yield from (
            f"- `{arm}`: {', '.join(f'{count} {status}' for status, count in runs.items())}"
            for arm, runs in kept.unsuccessful.items()
        )


def _claim(claim: ClaimResult) -> str:
    told = "**" if claim.verdict == "does_not_hold" else ""
    return f"| {claim.says} ({claim.source}) | {told}{verdict(claim)}{told} | {'<br>'.join(grounds(claim))} |"


def _table(table: PublishedTable) -> Iterator[str]:
    yield f"\n{subject(table)}:"
    yield "\n| arm | published | here |\n| --- | --- | --- |"
    yield from (f"| {row.arm} | {published(row)} | {measured(row)} |" for row in table.rows)
