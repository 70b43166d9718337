"""Characters that terminals obey are shown as escapes, and all others as they are."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.visible_text import visible, visible_json

BIDIRECTIONAL = {"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"


def is_obeyed(character: str) -> bool:
    """By its properties in Unicode."""
    return character not in "\t\n" and (
        unicodedata.category(character) in {"Cc", "Cs"}
        or unicodedata.bidirectional(character) in BIDIRECTIONAL
        or character in MARKS
    )


def test_every_character_that_a_terminal_obeys_is_an_escape_and_no_other() -> None:
    changed = {character for character in map(chr, range(0x110000)) if visible(character) != character}
    assert changed == {character for character in map(chr, range(0x110000)) if is_obeyed(character)}
    assert all(visible(character).isascii() and visible(character).isprintable() for character in changed)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07\x1b[2J", r"\x1b]52;c;aGk=\x07\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("txt.\u202eexe", r"txt.\u202eexe"),
        ("two\nlines\r\nand\tmore", "two\nlines\r\nand\tmore"),
        ("over\rwritten", r"over\rwritten"),
        ("naïve שלום 😀👩‍🔬 C:\\x1b", "naïve שלום 😀👩‍🔬 C:\\x1b"),
    ],
)
def test_visible_text_says_what_it_was(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@given(st.recursive(st.text() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)))
def test_json_has_the_same_values_and_nothing_that_a_terminal_obeys(value: object) -> None:
    document = visible_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(document) == value
    assert not any(map(is_obeyed, document))
