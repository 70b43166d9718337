"""Uploaded data sets in a document, described by their ids: what is stored and run names the very content."""

import re
from collections.abc import Callable
from typing import Any

from fedcore.errors import NotFoundError, SpecificationError
from fedcore.platform.store import Database, datasets
from fedcore.spec.sweep import JOINT

_Change = Callable[[Any, str], Any]
_PART = re.compile(r"problem\.dataset\.(id|content)(\.|$)")


def describe(document: Any, database: Database, owner: str | None = None, at: str = "") -> Any:
    """`document`, which stands at the pointer `at` of the body, with the `content` of each uploaded data set it names.

    Raises SpecificationError for an id that there is not, or not among the data sets of `owner` where one is given. What is wrong in
    other ways is left for the validation to find.
    """

    def dataset(block: Any, pointer: str) -> Any:
        if not isinstance(block, dict) or block.get("kind") != "uploaded":
            return block
        if block.get("id") is None:
            raise SpecificationError(f"{pointer}/id", "required: the id of a data set, as POST /v1/datasets answers it")
        return {**block, "content": _content(block["id"], f"{pointer}/id", database, owner)}

    def problem(block: Any, pointer: str) -> Any:
        return _changed(block, {"dataset": dataset}, pointer)

    def joint(block: Any, pointer: str) -> Any:
        _refuse_parts(block, pointer)
        return _changed(block, {"problem": problem, "problem.dataset": dataset}, pointer)

    def sweep(block: Any, pointer: str) -> Any:
        _refuse_parts(block, pointer)
        return _changed(block, {"problem": _each(problem), "problem.dataset": _each(dataset), JOINT: _each(joint)}, pointer)

    return _changed(document, {"problem": problem, "sweep": sweep}, at)


def _refuse_parts(block: Any, pointer: str) -> None:
    for path in block if isinstance(block, dict) else ():
        if _PART.match(path):
            raise SpecificationError(f"{pointer}/{path}", "an id and its content go together: sweep `problem.dataset`, whole blocks of it")


def _changed(block: Any, changes: dict[str, _Change], pointer: str) -> Any:
    """A copy of `block` with these of its fields changed, if it is a block and has them."""
    if not isinstance(block, dict):
        return block
    changed = {field: change(block[field], f"{pointer}/{field}") for field, change in changes.items() if field in block}
    return block | changed if changed else block


def _each(change: _Change) -> _Change:
    def change_each(values: Any, pointer: str) -> Any:
        if not isinstance(values, list):
            return values
        return [change(value, f"{pointer}/{index}") for index, value in enumerate(values)]

    return change_each


def _content(dataset_id: Any, pointer: str, database: Database, owner: str | None) -> Any:
    try:
        with database.reading() as session:
            return datasets.find(session, str(dataset_id), owner).content
    except NotFoundError as error:
        raise datasets.unknown(pointer, str(dataset_id)) from error
