"""CSV, JSON lines, and tables whose columns have other names, rewritten as Parquet that can be
uploaded.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from fedcore.data.user_datasets import Origin
from fedcore.errors import UploadError
from fedcore.platform.uploads.arrays import CLIENT, FEATURES, LABEL, NAMES, TEST
from fedcore.platform.uploads.parquet import refuse_nulls, refuse_unlabelled


def _read_csv(path: Path) -> Any:
    # Otherwise an empty cell of text is a text of no letters.
    return pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(strings_can_be_null=True))


_READERS = {"csv": _read_csv, "json": pa_json.read_json, "parquet": pq.read_table}


class Rewritten(NamedTuple):
    """A table as a Parquet file in memory."""

    file: BinaryIO
    origin: Origin


def as_parquet(path: Path, form: str, columns: Mapping[str, str]) -> Rewritten:
    """The table in `path` as a Parquet file in memory; raises UploadError.

    Labels that are text become classes in alphabetical order, a `test` of 0 and 1 becomes booleans,
    and lists of equal length become arrays.
    """
    try:
        table = _READERS[form](path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UploadError("", f"{path} is not a readable {form.upper()} file: {error}") from error
    return parquet_of(table, columns)


def parquet_of(
    table: Any, columns: Mapping[str, str], class_names: Sequence[str] = (), candidates: Sequence[str] = ()
) -> Rewritten:
    """A table as a Parquet file in memory, its `columns` renamed. `class_names` are those of labels that
    are numbers, `candidates` columns that may hold labels. Raises UploadError.
    """
    table = _renamed(table, columns)
    refuse_unlabelled(table.column_names, candidates)
    for place, name in enumerate(table.column_names):
        column = table.column(place).combine_chunks()
        if name != FEATURES:
            refuse_nulls(name, column)
        if name == LABEL and _is_text(column):
            class_names = _classes_of(column)
            column = pc.index_in(column, pa.array(class_names, column.type))
        table = table.set_column(place, name, _converted(name, column))
    file = io.BytesIO()
    pq.write_table(table, file)
    file.seek(0)
    label, client = (columns.get(name, name) for name in (LABEL, CLIENT))
    return Rewritten(file, Origin(label=label, client=client, class_names=tuple(class_names)))


def _renamed(table: Any, columns: Mapping[str, str]) -> Any:
    for name, given in columns.items():
        if name not in NAMES:
            raise UploadError(name, f"cannot be named; columns that can: {', '.join(NAMES)}")
        if given not in table.column_names:
            raise UploadError(name, f"there is no column {given!r}; columns: {', '.join(table.column_names)}")
    names = {given: name for name, given in columns.items()}
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def _converted(name: str, column: Any) -> Any:
    kind = column.type
    if name == TEST and pa.types.is_integer(kind):
        if not pc.all(pc.is_in(column, pa.array([0, 1], kind))).as_py():
            raise UploadError(TEST, "contains other numbers than 0 and 1; 1 is for samples to test with")
        return column.cast(pa.bool_())
    if name == CLIENT and pa.types.is_floating(kind):
        raise UploadError(CLIENT, "contains real numbers; it must contain integers or text")
    return _fixed(name, column) if name == FEATURES else column


def _is_text(column: Any) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _classes_of(column: Any) -> list[str]:
    """The texts in a column of labels, in alphabetical order."""
    classes: list[str] = pc.unique(column).sort().to_pylist()
    blank = next((name for name in classes if not name.strip()), None)
    if blank is not None:
        row = pc.index(column, value=blank).as_py() + 1
        raise UploadError(
            LABEL, f"is empty in row {row:,} of the data: remove such samples or fill in the label"
        )
    return classes


def _fixed(name: str, column: Any) -> Any:
    """Lists as lists of fixed size."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise UploadError(name, "contains lists of different lengths; all samples must have one shape")
    return pa.FixedSizeListArray.from_arrays(_fixed(name, column.flatten()), lengths[0])
