from itertools import pairwise

import pytest

from fedcore.spec.yaml_documents import SourcePosition, YamlError, dump, load, locate


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &a [" + "0, " * 1_000 + "0]\nb: &b [" + "*a, " * 400 + "*a]\nc: [*b, *b]", 3),
        (
            "a: &a {k: [0, 0, 0]}\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefghij")
            ),
            6,
        ),
        ("a: &a [*a" + ", 0" * 1_000 + "]\nb: [" + "*a, " * 600 + "0]", 2),
    ],
    ids=["wide", "layered", "an anchor that holds itself"],
)
def test_aliases_are_refused_before_they_unfold_where_they_repeat_too_much(text: str, line: int) -> None:
    with pytest.raises(YamlError, match="aliases expand to more than 500,000 values") as refused:
        load(text)
    assert refused.value.place is not None
    assert refused.value.place.line == line


def test_a_large_block_may_be_repeated_some_times() -> None:
    document = load("h: &h [" + "0, " * 9_999 + "0]\nclients: [" + "{H: *h}, " * 40 + "{H: *h}]")
    assert all(client["H"] is document["h"] for client in document["clients"])


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000])
def test_deep_nesting_is_refused_before_it_overflows_the_stack(text: str) -> None:
    with pytest.raises(ValueError, match="nested deeper than 32 levels"):
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        "[1",
        "--- 1\n--- 2",
        "!!bool maybe",
        "!!int 1:1",
        "!!python/name:os.system",
        "!!timestamp 2026-01-01",
        "? {a: 1}\n: 2",
        "1" * 5_000,
    ],
)
def test_files_without_a_document_of_plain_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: [1, 2\nc: 3", SourcePosition(3, 2)),
        ("a: 1\n\tb: 2", SourcePosition(2, 1)),
        ("a: 1\nb: 2\n a: 3", SourcePosition(3, 3)),
        ("a: {b: 1, c: 2, b: 3}", SourcePosition(1, 17)),
        ("a: *there", SourcePosition(1, 4)),
        ("a:\n  - !!timestamp 2026-01-01", SourcePosition(2, 5)),
        ("[" * 40, SourcePosition(1, 33)),
    ],
)
def test_files_without_a_document_are_refused_with_the_place(text: str, place: SourcePosition) -> None:
    with pytest.raises(YamlError) as refused:
        load(text)
    assert refused.value.place == place
    assert str(refused.value) == f"line {place.line}, column {place.column}: {refused.value.detail}"


def test_a_field_that_stands_twice_is_refused_for_one_of_its_values_would_be_lost() -> None:
    with pytest.raises(YamlError, match=r"line 3, column 1: 'rounds' stands here already, in line 1"):
        load("rounds: 5\nseeds: [1]\nrounds: 6")
    assert load("{rounds: 5, local: {rounds: 6}}") == {"rounds": 5, "local": {"rounds": 6}}


def test_places_are_those_where_fields_and_entries_begin_or_else_the_block_that_lacks_them() -> None:
    text = (
        "name: ü\nlocal:\n  lr: 1   # of all\n  seeds: [1, {a/b: 2}]\n'~x': 3\nagain: &it {lr: 1}\nmore:"
        " *it\n"
    )
    expected = {
        "": (1, 1),
        "/name": (1, 1),
        "/local": (2, 1),
        "/local/lr": (3, 3),
        "/local/lr/deeper": (3, 3),
        "/local/seeds/1": (4, 14),
        "/local/seeds/1/a~1b": (4, 15),
        "/local/seeds/2": (4, 3),
        "/local/steps": (2, 1),
        "/~0x": (5, 1),
        "/more": (7, 1),
        "/more/lr": (6, 13),
        "/rounds": (1, 1),
    }
    assert locate(text, expected) == expected


def test_an_empty_text_has_no_places() -> None:
    assert locate("", [""]) == {}


@pytest.mark.parametrize(
    "value",
    [
        *(
            "1e-3",
            "no",
            "true",
            "~",
            "",
            "007",
            "12:30",
            "a: b",
            "# no",
            "- x",
            "ü",
            "two\nlines",
            " x ",
            "{a",
            "<<",
            "=",
        ),
        *(
            1e-05,
            1e20,
            0.1,
            -3,
            True,
            None,
            [],
            {},
            [[1, 2], {"a": [1, {"b": None}]}],
            {"1": "1", "null": [None]},
        ),
    ],
)
def test_written_document_is_read_back(value: object) -> None:
    assert load(dump({"field": value})) == {"field": value}


def test_value_that_stands_twice_is_written_twice() -> None:
    shared = {"lr": 0.1}
    assert dump({"a": shared, "b": shared}) == "a: {lr: 0.1}\nb: {lr: 0.1}\n"
