"""Exports as two tables in files: `rounds`, with one row per round of each run, and `summary`, with
statistics over seeds.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedq import schemas
from fedq.client.results import Frame, rows_of
from fedq.results import tables


class Tables(ABC):
    """Two files in a folder; see Sink."""

    suffix: str

    def __init__(self, _experiment: schemas.Experiment, folder: Path, _tracking_uri: str | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.where = folder, str(folder)
        self._runs: list[tuple[schemas.Run, Sequence[schemas.RoundRow]]] = []

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Collect the rows; the columns are known after the last run."""
        self._runs.append((run, rows))

    def close(self, results: schemas.Results) -> None:
        """Write both files."""
        (self._folder / f"rounds.{self.suffix}").write_bytes(self.rounds(rows_of(self._runs)))
        (self._folder / f"summary.{self.suffix}").write_bytes(self.summary(results))

    @abstractmethod
    def rounds(self, frame: Frame) -> bytes:
        """Encode the rows."""

    @abstractmethod
    def summary(self, results: schemas.Results) -> bytes:
        """Encode the summary."""


class CsvRuns(Tables):
    """CSV files; absent values are empty fields, lists are JSON, and numbers have all digits."""

    suffix = "csv"

    def rounds(self, frame: Frame) -> bytes:
        """Encode the rows as CSV."""
        return tables.csv_of(
            frame.columns, ({name: _field(value) for name, value in line.items()} for line in frame)
        )

    def summary(self, results: schemas.Results) -> bytes:
        """Encode the summary as CSV."""
        return tables.to_csv(results, "summary")


def _field(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value
