"""Texts about published claims and numbers, shared by command line, reports and web pages."""

from collections.abc import Callable, Mapping

from fedq.schemas import ClaimResult, ComparisonResult, PublishedRow, PublishedTable

VERDICTS: Mapping[bool | None, str] = {True: "holds", False: "does not hold", None: "undecided"}
MOST = 0.5
"""Minimum share of the seeds; below it, a claim holds in the mean only."""


def verdict(claim: ClaimResult) -> str:
    """Verdict for the means, with the share of seeds if most of them disagree."""
    fewest = min(claim.comparisons, key=lambda side: side.seeds_holding / max(side.seeds, 1), default=None)
    if not claim.holds or fewest is None or fewest.seeds_holding >= MOST * fewest.seeds:
        return VERDICTS[claim.holds]
    return f"{VERDICTS[claim.holds]} in the mean, but in {fewest.seeds_holding} of {fewest.seeds} seeds only"


def side(found: ComparisonResult) -> str:
    """One comparison behind a claim, with its numbers."""
    left, right = (
        "diverged or never" if value is None else _number(value) for value in (found.left, found.right)
    )
    return (
        f"{'' if found.holds else 'not '}{found.says}: {left} against {right} ({found.seeds_holding} of"
        f" {found.seeds} seeds)"
    )


def known(claim: ClaimResult) -> str | None:
    """Known reason why a claim does not hold; None if there is none."""
    return f"Known: {claim.known_to_fail}" if claim.known_to_fail and not claim.holds else None


def grounds(claim: ClaimResult) -> list[str]:
    """Evidence for a verdict."""
    return [*map(side, claim.comparisons), *filter(None, [known(claim)])]


def subject(table: PublishedTable) -> str:
    """Description of a published table."""
    return (
        f"{table.statistic.replace('_', ' ').capitalize()} {table.metric.replace('_', ' ')}, published in"
        f" {table.source}"
    )


def published(row: PublishedRow) -> str:
    """Published number."""
    return _spread(row.published_mean, row.published_std)


def measured(row: PublishedRow) -> str:
    """Measured number."""
    return "none" if row.measured is None else _spread(row.measured.mean, row.measured.std)


FILTERS: Mapping[str, Callable[..., str | list[str] | None]] = {
    function.__name__: function for function in (verdict, side, known, grounds, subject, published, measured)
}
"""Filters for templates."""


def _spread(mean: float, std: float | None) -> str:
    return _number(mean) + ("" if std is None else f" ± {_number(std)}")


def _number(value: float) -> str:
    return f"{value:.4g}"
