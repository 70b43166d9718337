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
    """A table that becomes a data frame of the kind you use; iterating gives its lines as dicts."""

    columns: tuple[str, ...]
    """Their names, in order."""
    lines: list[dict[str, Any]]
    """Values by column."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def _repr_html_(self) -> str:
        return displays.lines(self.columns, self.lines)

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas frame; raises MissingPackageError where there is no pandas."""
        with _needed("pandas"):
            import pandas as pd

        return pd.DataFrame(self.lines, columns=list(self.columns))

    def to_polars(self) -> pl.DataFrame:
        """As a polars frame; raises MissingPackageError where there is no polars."""
        with _needed("polars"):
            import polars as pl

        return pl.DataFrame(self.lines, schema=list(self.columns), infer_schema_length=None)


class Framed(schemas.ArmResults):
    """What came out of arms, with its figures and curves as frames."""

    def _repr_html_(self) -> str:
        return displays.results(self)

    @property
    def summary(self) -> Frame:
        """One figure a line: arm, metric, figure (`best`, `final`, their differences to the
        baseline), mean, std, interval, tests.
        """
        return Frame(tables.COLUMNS["summary"], tables.lines(self, "summary"))

    @property
    def curves(self) -> Frame:
        """One point a line: arm, metric, round, megabytes sent and simulated seconds passed until
        then, mean and std over the seeds.
        """
        return Frame(tables.COLUMNS["curves"], tables.lines(self, "curves"))

    def to_pandas(self) -> pd.DataFrame:
        """The summary as a pandas frame."""
        return self.summary.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The summary as a polars frame."""
        return self.summary.to_polars()


class Results(Framed, schemas.Results):
    """What came out of an experiment: per arm figures over the seeds, differences to the baseline,
    curves.
    """


class ComparisonFrame(Framed, schemas.Comparison):
    """Arms of any experiments side by side: as results, with `members` that say where each arm is
    from.
    """


def rows_of(runs: Iterable[tuple[schemas.Run, Iterable[schemas.RoundRow]]]) -> Frame:
    """The rows of several runs as one table.

    What is measured beside the usual has a column of its own, after the others.
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
        raise MissingPackageError(f"requires {package}: pip install 'fedq[frames]'") from error
