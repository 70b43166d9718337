"""Text of users as terminals can show it: control characters move the cursor, clear the screen or write
the clipboard, and bidirectional ones change the order in which a line is read. The command line, progress
bars and logs show both as escapes.
"""

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but tab and the ends of lines, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates
    "\ud800-\udfff]"  # surrogates, which no stream can write
    "|\r(?!\n)"
)


def visible(text: str) -> str:
    """`text` with such characters as Python writes them."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_json(document: str) -> str:
    """JSON `document` of the same values, with such characters as JSON writes them."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
