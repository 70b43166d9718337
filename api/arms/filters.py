"""The language of filters and orders of arms: `algorithm.kind = fedprox and local.lr < 0.1`.

Parsed with pyparsing into the conditions of `store.arms`, which no text of users reaches but as a
value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import get_args

from api.arms.service import best_figure
from api.http.problems import InvalidDocumentError
from fedcore.lazy import pyparsing as pp
from fedcore.platform.store.arms import (
    All,
    AnyOf,
    Column,
    ColumnComparison,
    Condition,
    Fixed,
    FixedName,
    IsAbsent,
    IsOneOf,
    MeasureFigure,
    Not,
    Order,
    Setting,
)
from fedcore.spec import ExperimentSpec
from fedcore.spec.parameters import NO_PARAMETERS
from fedq.results.summaries import metric_names

LONGEST, DEEPEST = 2_000, 20
"""Characters of a filter, and its nested parentheses, at most."""
MOST_COMPARISONS, MOST_SORTED = 50, 10
"""Comparisons of a filter, and columns of an order, at most: the database is told of each in a kilobyte of
SQL, and with a cursor of each pair of columns.
"""
EXAMPLE = "algorithm.kind = fedprox and local.lr < 0.1"
_NAME = r"[A-Za-z_][\w]*(?:[./][\w]+)*"
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")


class _NameError(Exception):
    """A column that there is not."""


def condition_of(text: str) -> Condition:
    """Return the condition that a filter states; raises InvalidDocumentError with its position."""
    if _depth(text) > DEEPEST:
        raise InvalidDocumentError.at("?filter", f"may nest at most {DEEPEST} parentheses")
    try:
        found: Condition = (_grammar() + pp.StringEnd().set_name("`and` or `or`")).parse_string(text)[0]
    except pp.ParseBaseException as error:
        detail = f"position {error.loc + 1}: {_explained(error, text)}"
        raise InvalidDocumentError.at("?filter", detail) from None
    if (count := _comparisons(found)) > MOST_COMPARISONS:
        raise InvalidDocumentError.at(
            "?filter",
            f"may have at most {MOST_COMPARISONS} comparisons, not {count}; compare a column with several"
            " values by `in (...)`",
        )
    return found


def _comparisons(condition: Condition) -> int:
    match condition:
        case All(conditions) | AnyOf(conditions):
            return sum(map(_comparisons, conditions))
        case Not(inner):
            return _comparisons(inner)
        case _:
            return 1


def _explained(error: pp.ParseBaseException, text: str) -> str:
    if isinstance(error.__cause__, _NameError) or not error.msg.startswith("Expected"):
        return error.msg
    if "==" in text[max(error.loc - 1, 0) : error.loc + 2]:
        return "use `=` to compare, not `==`"
    rest = text[error.loc :].split()
    seen = f"not {rest[0]!r}" if rest else "but the filter ends"
    return f"{error.msg.replace('Expected', 'expected', 1)}, {seen}; for example `{EXAMPLE}`"


def order_of(text: str) -> list[Order]:
    """Return the columns of `sort`: names separated by commas, `-` before one for descending.

    Raises InvalidDocumentError.
    """
    names = [name for part in text.split(",") if (name := part.strip())]
    if len(names) > MOST_SORTED:
        raise InvalidDocumentError.at("?sort", f"may name at most {MOST_SORTED} columns, not {len(names)}")
    return [Order(_named(name.removeprefix("-"), "?sort"), name.startswith("-")) for name in names]


def columns_of(text: str) -> list[Column]:
    """Return the columns of `fields`: names separated by commas."""
    return [_named(name, "?fields") for name in filter(None, (part.strip() for part in text.split(",")))]


def _named(name: str, pointer: str) -> Column:
    try:
        return column_of(name)
    except _NameError as error:
        raise InvalidDocumentError.at(pointer, str(error)) from None


def column_of(name: str) -> Column:
    """Return the column with this name; raises _NameError."""
    if name in get_args(FixedName):
        return Fixed(name)  # type: ignore[arg-type]
    measure, _, which = name.rpartition(".")
    if which in ("best", "final") and measure in metric_names():
        if which == "final":
            return MeasureFigure(measure, "final")
        best = best_figure(measure)
        if best is None:
            raise _NameError(f"`{measure}` has no best value; use `{measure}.final`")
        return best
    fields = [field for field in ExperimentSpec.model_fields if field not in NO_PARAMETERS]
    if re.fullmatch(_NAME, name) and name.partition(".")[0] in fields:
        return Setting(name)
    known = [*get_args(FixedName), *(f"{metric}.final" for metric in metric_names()), *fields]
    close = get_close_matches(name, known, 1, 0.6) or get_close_matches(name.partition(".")[0], known, 1, 0.6)
    hint = f" (did you mean `{close[0]}`?);" if close else ";"
    raise _NameError(
        f"there is no column `{name}`{hint} columns are settings such as `local.lr`, metrics such as"
        f" `test_accuracy.final` or `.best`, and {', '.join(get_args(FixedName))}"
    )


def _depth(text: str) -> int:
    deepest = depth = 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        deepest = max(deepest, depth)
    return deepest


def _column(text: str, place: int, found: pp.ParseResults) -> Column:
    try:
        return column_of(found[0])
    except _NameError as error:
        raise pp.ParseFatalException(text, place, str(error)) from None


def _comparison(found: pp.ParseResults) -> list[Condition]:
    column, sign, *values = found
    if sign == "in":
        return [IsOneOf(column, values)]
    if sign == "is":
        return [Not(IsAbsent(column)) if values else IsAbsent(column)]
    return [ColumnComparison(column, sign, values[0])]


def _negated(found: pp.ParseResults) -> list[Condition]:
    *nots, condition = found
    return [Not(condition)] if len(nots) % 2 else [condition]


def _joined(kind: type[All | AnyOf]) -> Callable[[pp.ParseResults], list[Condition]]:
    return lambda found: [kind(list(found)) if len(found) > 1 else found[0]]


@cache
def _grammar() -> pp.ParserElement:
    words = {name: pp.CaselessKeyword(name) for name in _KEYWORDS}
    keyword = pp.MatchFirst(list(words.values()))
    column = (~keyword + pp.Regex(_NAME)).set_parse_action(_column)
    number = pp.Regex(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\w.])")
    number.set_parse_action(lambda found: float(found[0]))
    truth = (words["true"] | words["false"]).set_parse_action(lambda found: [found[0] == "true"])
    quoted = pp.QuotedString('"', esc_char="\\") | pp.QuotedString("'", esc_char="\\")
    bare = ~keyword + pp.Regex(r"[\w./:+-]+")
    value = (number | truth | quoted | bare).set_name("a number, a word, or text in quotes")
    sign = pp.one_of("= != < <= > >= ~")
    values = pp.Suppress("(") - value - pp.ZeroOrMore(pp.Suppress(",") - value) - _closing()
    absence = words["is"] - pp.Optional(words["not"]) - words["null"].suppress()
    test = ((sign - value) | (words["in"] - values) | absence).set_name(
        "=, !=, <, <=, >, >=, ~ (contains), in (...), is null or is not null"
    )
    condition = pp.Forward()
    grouped = pp.Suppress("(") - condition - _closing()
    operand = grouped | (column - test).set_parse_action(_comparison)
    negated = pp.ZeroOrMore(words["not"]) + operand.set_name("the name of a column, such as local.lr")
    negated.set_parse_action(_negated)
    both = negated + pp.ZeroOrMore(words["and"].suppress() - negated)
    either = both.set_parse_action(_joined(All)) + pp.ZeroOrMore(words["or"].suppress() - both)
    condition <<= either.set_parse_action(_joined(AnyOf))
    return condition


def _closing() -> pp.ParserElement:
    return pp.Suppress(")").set_name("`)`, `and` or `or`")
