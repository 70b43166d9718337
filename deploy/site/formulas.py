"""Formulas between dollar signs as MathML, which browsers draw by themselves."""

import re

from latex2mathml.converter import convert

_PARTS = re.compile(
    r"(?P<code>^```[\s\S]*?^```$|^ {4}.*$|`[^`\n]+`)"
    r"|\$\$(?P<block>[\s\S]+?)\$\$"
    r"|(?<![\\\w$])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\w)",
    re.MULTILINE,
)


def with_mathml(markdown: str) -> str:
    """`markdown` with `$...$` and `$$...$$` outside of code replaced by what they mean."""
    return _PARTS.sub(_replaced, markdown)


def _replaced(found: re.Match[str]) -> str:
    if (block := found["block"]) is not None:
        return convert(block.strip(), display="block")
    # In a span, for Markdown would take an element that begins a line for a block.
    return found[0] if found["code"] is not None else f"<span>{convert(found['inline'])}</span>"
