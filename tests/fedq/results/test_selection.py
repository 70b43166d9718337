"""Sentences of results about the selection of their rounds and arms."""

from typing import Any

import numpy as np
import pytest

from fedcore.statistics.series import Series
from fedq.results.selection import BY_VALIDATION, explain_selection
from tests.builders.specifications import DIGITS, QUADRATIC, Document, specification

PLAIN = [Series({"test_accuracy": np.ones(2), "validation_accuracy": np.full(2, np.nan)})]
VALIDATED = [Series({"test_accuracy": np.ones(2), "validation_accuracy": np.array([np.nan, 0.5])})]
ASHA: Document = {"kind": "asha", "metric": "test_accuracy", "min_rounds": 1}
STUDY: Document = {
    "kind": "study",
    "metric": "test_loss",
    "trials": 4,
    "space": {"local.lr": {"kind": "float", "low": 0.01, "high": 1.0}},
}
SWEEP = {"sweep": {"local.lr": [0.1, 0.2, 0.3]}}


def said(series: list[Series], base: Document = DIGITS, **changes: Any) -> str | None:
    return explain_selection([specification(base, **changes).model_dump(mode="json")], series)


@pytest.mark.parametrize(
    ("changes", "metric"), [({"search": ASHA, **SWEEP}, "test_accuracy"), ({"search": STUDY}, "test_loss")]
)
def test_a_search_by_test_samples_is_said_to_be_tuned_on_test_data(changes: Document, metric: str) -> None:
    told = said(PLAIN, **changes)
    assert told is not None
    assert told.startswith(f"Tuned on test data: the search judged its arms by {metric},")


def test_a_search_by_samples_that_are_held_out_for_it_is_not() -> None:
    search = ASHA | {"metric": "validation_accuracy"}
    changes = {"search": search, "evaluation": {"validation": {"share": 0.1}}, **SWEEP}
    assert said(VALIDATED, **changes) == BY_VALIDATION


def test_without_search_and_validation_nothing_was_selected() -> None:
    assert said(PLAIN, **SWEEP) is None
    assert said(PLAIN, search=ASHA | {"metric": "train_loss"}, **SWEEP) is None
    assert said([], QUADRATIC, search=ASHA | {"metric": "suboptimality"}, **SWEEP) is None
