"""Specifications with something odd in them, for tests that hand them to whatever reads
specifications.
"""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from tests.builders.specifications import Document

Path = tuple[str | int, ...]

NUMBERS: tuple[Any, ...] = (
    *(
        0,
        1,
        2,
        3,
        10,
        100,
        1_000,
        10**5,
        10**6,
        2**31,
        2**53,
        0.0,
        1e-320,
        1e-12,
        1e-6,
        0.01,
        0.1,
        0.5,
        0.99,
        1.0,
        1.5,
        40.0,
        700.0,
        1e6,
    ),
    *(1e12, 1e100, 1e308, -1, -1e-3, -1e308),
)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        10**6,
        2**31,
        2**63,
        -(2**63),
        10**30,
        0.0,
        -0.0,
        0.5,
        1e-320,
        1e-5,
        1e308,
        -1e308,
        40.0,
        1e6,
    ),
    *(
        "",
        " ",
        "x",
        "samples",
        "full",
        "none",
        "fedavg",
        "0.1",
        "1e999",
        "NaN",
        "-",
        "é\u200b",
        "x" * 300,
        "a.b",
        "kind",
        "../..",
        "$x$",
    ),
    *(
        [],
        [None],
        [0],
        [1, 1],
        [[]],
        [[0.1], [0.2, 0.3]],
        ["x"],
        [{}],
        [0.1] * 40,
        {},
        {"kind": None},
        {"kind": []},
        {"kind": {}},
    ),
    *(
        {"kind": ""},
        {"kind": 1},
        {"kind": True, "mu": 0.1},
        {"kind": "fedprox", "mu": 0.1},
        {"kind": "sgd", "lr": []},
        {"": ""},
    ),
    *(
        {"kind": "per_client", "values": []},
        {"kind": "trace", "rounds": [[]]},
        {"a": {"b": {"c": {"d": []}}}},
    ),
)
"""Values that are seldom right anywhere, and types that are wrong almost everywhere."""


def paths(document: Any, at: Path = ()) -> list[Path]:
    """Of all values in a document, itself left out."""
    entries = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    found = [(*at, key) for key, _ in entries]
    return found + [inner for path in found for inner in paths(_at(document, path[len(at) :]), path)]


@st.composite
def mutated(draw: st.DrawFn, documents: list[Document]) -> Document:
    """One of `documents` with one to three values replaced, removed, renamed, moved into its sweep,
    or added.
    """
    document = deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        known = paths(document)
        if not known:
            break
        path = draw(st.sampled_from(known))
        if draw(st.integers(0, 2)):
            _vary(draw, document, path, documents)
        else:
            _mutate(draw, document, path)
    return document


def _vary(draw: st.DrawFn, document: Document, path: Path, documents: list[Document]) -> None:
    """Replace a number by another, and anything else by what another document has there: often
    still a valid document.
    """
    *block_path, key = path
    block = _at(document, tuple(block_path))
    if isinstance(block[key], int | float) and not isinstance(block[key], bool):
        block[key] = draw(st.sampled_from(NUMBERS))
        return
    others = [_at(other, path) for other in documents if path in paths(other)]
    if others:
        block[key] = deepcopy(draw(st.sampled_from(others)))


def _mutate(draw: st.DrawFn, document: Document, path: Path) -> None:
    *block_path, key = path
    block = _at(document, tuple(block_path))
    value = deepcopy(draw(st.sampled_from(ODD)))
    match draw(st.sampled_from(("replace", "remove", "rename", "sweep", "join", "add", "entry"))):
        case "replace":
            block[key] = value
        case "remove":
            del block[key]
        case "rename" if isinstance(block, dict):
            block[draw(st.sampled_from(("", "kind", "x", f"{key}x", "/", "~", "sweep", "rounds")))] = (
                block.pop(key)
            )
        case "sweep":
            _swept(document)[".".join(map(str, path))] = [deepcopy(_at(document, path)), value]
        case "join":
            _swept(document)["arms"] = [
                {".".join(map(str, path)): value, "name": draw(st.sampled_from(("a", "", None)))},
                value,
            ]
        case "entry" if isinstance(block[key], dict):
            block[key] = {**block[key], "kind": value}
        case _:
            block[key] = [deepcopy(block[key]), value]


def _swept(document: Document) -> Document:
    if not isinstance(document.get("sweep"), dict):
        document["sweep"] = {}
    swept: Document = document["sweep"]
    return swept


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document
