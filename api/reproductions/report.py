"""What came out of a sheet, as Markdown."""

from collections.abc import Iterator

from api.reproductions import Part, Reproduction
from api.schemas import ClaimResult, PublishedTable
from fedcore.status import Status

VERDICTS = {True: "holds", False: "**does not hold**", None: "undecided"}


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
        yield from _part(part, several=len(reproduction.parts) > 1)


def _part(part: Part, *, several: bool) -> Iterator[str]:
    experiment, spec = part.experiment, part.experiment.specification
    if several:
        yield f"\n## {part.title[0].upper()}{part.title[1:]}"
    seeds = ", ".join(map(str, spec["seeds"]))
    yield f"\nPreset `{part.preset.name}`, version {part.preset.version}; {spec['rounds']} rounds, seeds {seeds}; {experiment.status}."
    if part.preset.departures:
        yield "\nDepartures from the source:"
        yield from (f"- {departure}" for departure in part.preset.departures)
    if part.claims.claims:
        yield "\n| claim | | what came out |\n| --- | --- | --- |"
        yield from map(_claim, part.claims.claims)
    for table in part.claims.published:
        yield from _table(table)
    failed = [f"- `{arm.name}`: {dict(arm.runs)}" for arm in part.results.arms if set(arm.runs) - {Status.SUCCEEDED}]
    if failed:
        yield "\nRuns that did not succeed:"
        yield from failed


def _claim(claim: ClaimResult) -> str:
    sides = "<br>".join(
        f"{'' if side.holds else 'not '}{side.says}: {_number(side.left)} against {_number(side.right)}"
        f" ({side.seeds_holding} of {side.seeds} seeds)"
        for side in claim.comparisons
    )
    known = f"<br>Known: {claim.known_to_fail}" if claim.known_to_fail and not claim.holds else ""
    return f"| {claim.says} ({claim.source}) | {VERDICTS[claim.holds]} | {sides}{known} |"


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
