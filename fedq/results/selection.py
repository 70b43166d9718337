"""Selection of rounds and arms in words: by samples that are held out for it, or by test samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedcore.spec.search import is_of_tests

if TYPE_CHECKING:
    from fedcore.statistics.series import Series

BY_VALIDATION = "The best value of a test measure is that of the round that is best by validation."


def explain_tuning(specification: Mapping[str, Any]) -> str | None:
    """Say that the search of a specification, given as a document, judges its arms by test samples; None
    if it does not.
    """
    search = specification.get("search")
    if search is None or specification["evaluation"].get("validation") is not None:
        return None
    metrics = [search["metric"], *(one["metric"] for one in search.get("further_metrics", ()))]
    of_tests = [metric for metric in metrics if is_of_tests(metric)]
    if not of_tests:
        return None
    return (
        f"Tuned on test data: the search judged its arms by {' and '.join(of_tests)}, so their figures are"
        " too good; evaluation.validation holds out samples for it."
    )


def explain_selection(specifications: Iterable[Mapping[str, Any]], series: Iterable[Series]) -> str | None:
    """Say how rounds and arms of experiments with these specifications and runs were selected, where
    validation or test samples decided; None if neither did.
    """
    said = [told for one in specifications if (told := explain_tuning(one)) is not None]
    if any(one.selectors for one in series):
        said.append(BY_VALIDATION)
    return " ".join(dict.fromkeys(said)) or None
