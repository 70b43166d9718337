"""What came out of a sheet, as Markdown."""

from collections.abc import Iterator

from api.reproductions import Reproduction
from api.reproductions.records import Record, record
from api.schemas import ClaimResult, PublishedTable
from fedcore.presets import Preset

VERDICTS = {True: "holds", False: "**does not hold**", None: "undecided"}
HALF = 0.5


def report(reproduction: Reproduction, picture: str | None) -> str:
    """A section on the sheet: what was run, the picture beside the text, published numbers, and a verdict for each claim."""
    return "\n".join(_lines(reproduction, picture)) + "\n"


def _lines(reproduction: Reproduction, picture: str | None) -> Iterator[str]:
    sheet = reproduction.sheet
    yield f"# {sheet.title}"
    yield ""
    yield f"{sheet.source}. Run again by `fedq reproduce-paper {reproduction.name}{' --small' if reproduction.small else ''}`."
    if picture:
        yield f"\n![{sheet.title}]({picture})"
    for part in reproduction.parts:
        if len(reproduction.parts) > 1:
            yield f"\n## {part.title[0].upper()}{part.title[1:]}"
        yield ""
        yield from section(record(part), part.preset)


def section(kept: Record, preset: Preset) -> Iterator[str]:
    """What was run of one panel, how it departs from its source, and what came out."""
    data, engines = ", ".join(kept.data) or "its own data", " and ".join(kept.engines)
    seeds = f"seed{'s' if len(kept.seeds) > 1 else ''} {', '.join(map(str, kept.seeds))}"
    yield f"Preset `{kept.preset}`, version {kept.version}: {data}; {kept.rounds} rounds, {seeds}; {engines}; {kept.status}."
    if preset.departures:
        yield "\nDepartures from the source:\n"
        yield from (f"- {departure}" for departure in preset.departures)
    if kept.claims:
        yield "\n| claim | | what came out |\n| --- | --- | --- |"
        yield from map(_claim, kept.claims)
    for table in kept.published:
        yield from _table(table)
    if kept.diverged:
        yield f"\nDiverged: {', '.join(f'{arm} ({count} of {len(kept.seeds)} runs)' for arm, count in kept.diverged.items())}."
    if kept.unsuccessful:
        yield "\nRuns that did not succeed:\n"
        yield from (
            f"- `{arm}`: {', '.join(f'{count} {status}' for status, count in runs.items())}" for arm, runs in kept.unsuccessful.items()
        )


def _claim(claim: ClaimResult) -> str:
    sides = "<br>".join(
        f"{'' if side.holds else 'not '}{side.says}: {_number(side.left)} against {_number(side.right)}"
        f" ({side.seeds_holding} of {side.seeds} seeds)"
        for side in claim.comparisons
    )
    known = f"<br>Known: {claim.known_to_fail}" if claim.known_to_fail and not claim.holds else ""
    return f"| {claim.says} ({claim.source}) | {verdict(claim)} | {sides}{known} |"


def verdict(claim: ClaimResult) -> str:
    """The verdict, which is that of the means; with the share of the seeds where most of them say otherwise."""
    fewest = min(claim.comparisons, key=lambda side: side.seeds_holding / max(side.seeds, 1), default=None)
    if not claim.holds or fewest is None or fewest.seeds_holding >= HALF * fewest.seeds:
        return VERDICTS[claim.holds]
    return f"{VERDICTS[claim.holds]} in the mean, but in {fewest.seeds_holding} of {fewest.seeds} seeds only"


def _table(table: PublishedTable) -> Iterator[str]:
    yield f"\n{table.statistic.replace('_', ' ').capitalize()} {table.metric.replace('_', ' ')}, published in {table.source}:"
    yield "\n| arm | published | here |\n| --- | --- | --- |"
    for row in table.rows:
        here = None if row.measured is None else _spread(row.measured.mean, row.measured.std)
        yield f"| {row.arm} | {_spread(row.published_mean, row.published_std)} | {here or 'none'} |"


def _spread(mean: float, std: float | None) -> str:
    return _number(mean) + ("" if std is None else f" ± {_number(std)}")


def _number(value: float | None) -> str:
    return "diverged or never" if value is None else f"{value:.4g}"
