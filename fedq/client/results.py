"""Results and rows as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedq import schemas
from fedq.client import displays
from fedq.client.errors import MissingPackageError
from fedq.results import tables

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass(frozen=True)
class Frame:
    """A table that converts to a data frame; iterating yields its rows as dicts."""

    columns: tuple[str, ...]
    """Column names in order."""
    lines: list[dict[str, Any]]
    """Rows as values by column."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def _repr_html_(self) -> str:
        return displays.lines(self.columns, self.lines)

    def to_pandas(self) -> pd.DataFrame:
        """Convert to a pandas data frame. Raises MissingPackageError if pandas is not installed."""
        with _needed("pandas"):
            import pandas as pd

        return pd.DataFrame(self.lines, columns=list(self.columns))

    def to_polars(self) -> pl.DataFrame:
        """Convert to a polars data frame. Raises MissingPackageError if polars is not installed."""
        with _needed("polars"):
            import polars as pl

        return pl.DataFrame(self.lines, schema=list(self.columns), infer_schema_length=None)


class Framed(schemas.ArmResults):
    """Results of arms, with summary and curves as frames."""

    def _repr_html_(self) -> str:
        return displays.results(self)

    @property
    def summary(self) -> Frame:
        """One row per statistic: arm, metric, figure (`best`, `final`, their differences from the
        baseline), mean, std, confidence interval and tests.
        """
        return Frame(tables.COLUMNS["summary"], tables.lines(self, "summary"))

    @property
    def curves(self) -> Frame:
        """One row per point: arm, metric, round, megabytes sent and simulated seconds until then,
        mean and std over the seeds.
        """
        return Frame(tables.COLUMNS["curves"], tables.lines(self, "curves"))

    def to_pandas(self) -> pd.DataFrame:
        """Convert the summary to a pandas data frame."""
        return self.summary.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Convert the summary to a polars data frame."""
        return self.summary.to_polars()


class Results(Framed, schemas.Results):
    """Results of an experiment: statistics of each arm over the seeds, differences from the
    baseline, and curves.
    """


class ComparisonFrame(Framed, schemas.Comparison):
    """Comparison of arms of any experiments, like Results; `members` tells where each arm is from."""


def rows_of(runs: Iterable[tuple[schemas.Run, Iterable[schemas.RoundRow]]]) -> Frame:
    """The rows of several runs as one table, with a column for each additional measure after the
    usual ones.
    """
    lines = [_line(run, row) for run, rows in runs for row in rows]
    usual = (
        "run_id",
        "arm",
        "arm_name",
        "seed",
        *(name for name in schemas.RoundRow.model_fields if name != "extra"),
    )
    return Frame(tuple(dict.fromkeys((*usual, *(name for line in lines for name in line)))), lines)


def _line(run: schemas.Run, row: schemas.RoundRow) -> dict[str, Any]:
    place = {"run_id": run.id, "arm": run.arm, "arm_name": run.arm_name, "seed": run.seed}
    return place | row.model_dump(exclude={"extra"}) | row.extra


@contextmanager
def _needed(package: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"needs {package}: pip install 'fedq[frames]'") from error
