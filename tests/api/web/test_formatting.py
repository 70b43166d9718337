"""Figures as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from api.web import rendering


@pytest.mark.parametrize(
    ("passed", "text"),
    [(5, "just now"), (61, "1 min ago"), (3_700, "1 h ago"), (200_000, "2 d ago"), (-5, "just now")],
)
def test_moments_are_told_by_their_largest_unit(passed: float, text: str) -> None:
    assert rendering.ago(datetime.now(UTC) - timedelta(seconds=passed)) == text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("set `local.lr` to <1>", "set <code>local.lr</code> to &lt;1&gt;"),
        ("`<b>` and `x`", "<code>&lt;b&gt;</code> and <code>x</code>"),
        ("a ` alone", "a ` alone"),
        ("", ""),
    ],
)
def test_code_in_messages_is_shown_as_code_and_nothing_else_is_markup(text: str, html: str) -> None:
    assert rendering.prose(text) == html


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (1_234_567, "1.23 MB"), (5e15, "5e+03 TB")],
)
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert rendering.size(count) == text
