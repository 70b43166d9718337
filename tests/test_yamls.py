import pytest

from fedcore.yamls import load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("007", 7),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ("True", True),
        ("~", None),
        ("", None),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    assert load(text) == value


def test_an_alias_repeats_its_anchor() -> None:
    assert load("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}


def test_a_merge_key_is_a_key_like_any_other() -> None:
    assert load("<<: {a: 1}") == {"<<": {"a": 1}}


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000])
def test_deep_nesting_is_refused_before_it_overflows_the_stack(text: str) -> None:
    with pytest.raises(ValueError, match="nested deeper than 32 levels"):
        load(text)


@pytest.mark.parametrize(
    "text",
    ["[1", "--- 1\n--- 2", "!!bool maybe", "!!int 1:1", "!!python/name:os.system", "!!timestamp 2026-01-01", "? {a: 1}\n: 2", "1" * 5_000],
)
def test_what_is_no_document_of_plain_values_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load(text)
