"""The tables as Parquet."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from fedq.client.exports.files import Tables
from fedq.results import tables
from fedq.results.frames import Frame
from fedq.results.tables import PLACE_COLUMNS


class ParquetRuns(Tables):
    """Parquet files with typed columns."""

    suffix = "parquet"
    media_type = tables.PARQUET

    def frame(self, frame: Frame) -> bytes:
        """Encode the rows as Parquet."""
        columns = {name: [line.get(name) for line in frame] for name in frame.columns}
        made = {name: typed_array(name, values) for name, values in columns.items()}
        file = pa.BufferOutputStream()
        parquet.write_table(pa.table(made), file)
        content: bytes = file.getvalue().to_pybytes()
        return content


KNOWN = {
    **dict.fromkeys(("run_id", "arm_name", "name", "status", *PLACE_COLUMNS), pa.string()),
    **dict.fromkeys(("committed_at", "created_at"), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("arm", "seed", "seeds", "round", "rounds_done", "rounds_total"), pa.int64()),
    **dict.fromkeys(("diverged", "stopped", "local_steps", "bytes_up", "bytes_down"), pa.int64()),
}
"""Types that are the same for every experiment, even if a column is empty."""


def typed_array(name: str, values: Sequence[Any]) -> Any:
    """A column of a table: of a known type, text if one value is, else of numbers."""
    kinds = {type(value) for value in values if value is not None}
    if name in KNOWN:
        return pa.array(values, KNOWN[name])
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and "." in name:
        # A setting, such as the size of a batch; numbers of measures may happen to be integers.
        return pa.array(values, pa.int64())
    if str in kinds:
        return pa.array([value if value is None else str(value) for value in values], pa.string())
    return pa.array(values, pa.list_(pa.float64()) if list in kinds else pa.float64())
