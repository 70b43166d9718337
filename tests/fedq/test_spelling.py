"""Suggestions for misspelt fields of the specification, at every depth."""

import pytest

from fedcore import ExperimentSpec
from fedq.validation_errors import suggestion


@pytest.mark.parametrize(
    ("location", "told"),
    [
        (("raunds",), "did you mean rounds?"),
        (("algorithm", "fedprox", "muu"), "did you mean mu?"),
        (("algorithm", "fedavg", "mu"), "known fields: kind, server_lr, variance_reduction"),
        (("problem", "dataset", "quadratic", "clients", 0, "wait"), "did you mean weight?"),
        (("systems", "stragglers", "fractions"), "did you mean fraction?"),
    ],
)
def test_a_field_that_looks_alike_is_suggested_or_else_all_there_are(
    location: tuple[str | int, ...], told: str
) -> None:
    assert suggestion(ExperimentSpec, location) == told
