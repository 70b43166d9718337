"""Counts that shares stand for, against rational arithmetic; descriptions of fields."""

from fractions import Fraction
from math import ceil

import pytest
from pydantic import create_model

from fedcore.block import MAX_CLIENTS, MAX_ROUNDS, Block, ceil_share, field_docstrings
from fedcore.compression.top_k import TopK
from fedcore.systems.participation import Uniform

COUNTS = (*range(1_001), MAX_ROUNDS - 1, MAX_ROUNDS, 10 * MAX_CLIENTS - 1, 10 * MAX_CLIENTS)


@pytest.mark.parametrize("parts", [100, 1_000])
def test_the_ceiling_of_a_share_is_that_of_the_decimal(parts: int) -> None:
    counts = COUNTS if parts == 100 else COUNTS[::7]
    wrong = [
        (part, n)
        for part in range(parts + 1)
        for n in counts
        if ceil_share(part / parts, n) != ceil(Fraction(part, parts) * n)
    ]
    assert wrong == []


def test_constant_of_a_third_written_out_is_that_of_a_third() -> None:
    assert [ceil_share(share / 3, 300) for share in (1, 2, 3)] == [100, 200, 300]
    assert ceil_share(5 / 6, 600) == 500


def test_counts_that_are_rounded_are_nearest_to_the_share() -> None:
    """Floats decide ties only: 0.14 of 75 is 10.5, for which 11 is as near as 10."""
    for part in range(1, 101):
        cohorts, kept = Uniform(kind="uniform", fraction=part / 100), TopK(kind="top_k", ratio=part / 100)
        for n in range(1, 300):
            for count in (cohorts.cohort_size(n), kept.kept(n)):
                assert abs(count - max(Fraction(1), Fraction(part * n, 100))) <= Fraction(1, 2)


class Documented(Block):
    """A block of this test."""

    rate: float = 1.0
    """Step size of
    a client.
    """
    count: int = 1
    plain: int = 0
    "Of one line."


class Derived(Documented):
    """Describes two of the fields that it inherits or replaces."""

    rate: float = 2.0
    count: int = 2
    """Of clients."""

    class Inner(Block):
        """Its fields are not the outer ones."""

        depth: int = 1
        """Of a tree."""


def test_the_string_below_a_field_describes_it_in_the_schema() -> None:
    properties = Documented.model_json_schema()["properties"]
    assert {name: schema.get("description") for name, schema in properties.items()} == {
        "rate": "Step size of\na client.",
        "count": None,
        "plain": "Of one line.",
    }


def test_a_class_describes_anew_the_fields_that_it_declares_anew() -> None:
    assert field_docstrings(Derived) == {"count": "Of clients.", "plain": "Of one line."}
    assert field_docstrings(Derived.Inner) == {"depth": "Of a tree."}


def test_a_class_within_a_function_has_descriptions_too() -> None:
    class Local(Block):
        """Its name is known here alone."""

        width: int = 1
        """Of a layer."""

    assert field_docstrings(Local) == {"width": "Of a layer."}


def test_a_class_without_a_source_file_has_no_descriptions() -> None:
    assert field_docstrings(create_model("Drawn", width=(int, 1))) == {}
