"""Results as bytes, for files and pipes."""

from enum import StrEnum
from pathlib import Path

import typer

from fedq.results import tables
from fedq.schemas import Results


class Encoding(StrEnum):
    """File formats of results; the value is the file suffix."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def encode(results: Results, encoding: Encoding) -> bytes:
    """Encode results; CSV and Parquet hold the summary, one value per row."""
    match encoding:
        case Encoding.JSON:
            return results.model_dump_json(indent=2).encode()
        case Encoding.CSV:
            return tables.to_csv(results, "summary")
        case Encoding.PARQUET:
            return tables.to_parquet(results, "summary")


def encoding_of(path: Path) -> Encoding:
    """Encoding named by the suffix of `path`. Raises typer.BadParameter."""
    try:
        return Encoding(path.suffix.lower().removeprefix("."))
    except ValueError as error:
        known = ", ".join(f".{encoding}" for encoding in Encoding)
        raise typer.BadParameter(
            f"the file name must end in {known}, not {path}", param_hint="--output"
        ) from error
