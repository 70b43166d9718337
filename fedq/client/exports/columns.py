"""The tables as Parquet."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from fedq import schemas
from fedq.client.exports.files import Tables
from fedq.results import tables
from fedq.results.tables import Frame


class ParquetRuns(Tables):
    """Parquet files with typed columns."""

    suffix = "parquet"

    def rounds(self, frame: Frame) -> bytes:
        """Encode the rows as Parquet."""
        columns = {name: [line.get(name) for line in frame] for name in frame.columns}
        made = {name: pa.array(values, _type(name, values)) for name, values in columns.items()}
        file = pa.BufferOutputStream()
        parquet.write_table(pa.table(made), file)
        content: bytes = file.getvalue().to_pybytes()
        return content

    def summary(self, results: schemas.Results) -> bytes:
        """Encode the summary as Parquet."""
        return tables.to_parquet(results, "summary")


def _type(name: str, values: Sequence[Any]) -> Any:
    """Type of a column: the same for every experiment, even if a column is empty or its numbers
    happen to be integers.
    """
    known = dict.fromkeys(("run_id", "arm_name"), pa.string()) | {"committed_at": pa.timestamp("us", "UTC")}
    known |= dict.fromkeys(("arm", "seed", "round", "local_steps", "bytes_up", "bytes_down"), pa.int64())
    listed = any(isinstance(value, list) for value in values)
    return known.get(name, pa.list_(pa.float64()) if listed else pa.float64())
