"""Results and rounds as tables: data frames, CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, Literal

from fedq import schemas
from fedq.schemas import ArmResult, ArmResults, Estimate

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"
"""Their media types."""
Table = Literal["summary", "curves"]
Line = dict[str, Any]

COLUMNS: dict[Table, tuple[str, ...]] = {
    "summary": (
        "arm",
        "name",
        "metric",
        "figure",
        "n",
        "mean",
        "std",
        "low",
        "high",
        "p",
        "p_adjusted",
        "p_signed_rank",
        "verdict",
    ),
    "curves": (
        "arm",
        "name",
        "metric",
        "round",
        "megabytes",
        "simulated_seconds",
        "n",
        "mean",
        "std",
        "epsilon",
    ),
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of what spreadsheets take for a formula (OWASP, CSV injection)."""
FIGURES = ("best", "final", "area", "best_difference", "final_difference", "area_difference")
COSTS = ("rounds", "megabytes", "simulated_seconds", "seconds")
"""Costs of reaching a target."""
TOTALS = ("local_steps", "megabytes_up", "megabytes_down", "megabytes_sent", "seconds", "simulated_seconds")


def columns_of(results: ArmResults, table: Table) -> tuple[str, ...]:
    """`COLUMNS[table]`, then the settings: those in which the arms may differ, and all others."""
    return tuple(
        dict.fromkeys(
            (*COLUMNS[table], *names_of(arm.parameters for arm in results.arms), *results.parameters)
        )
    )


def names_of(parameters: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The settings that one of these arms has, in order."""
    return tuple(dict.fromkeys(path for own in parameters for path in own))


def lines(results: ArmResults, table: Table) -> list[Line]:
    """The lines of a table, with `columns_of` it; a figure that no run has is left out."""
    tabulate = _summary if table == "summary" else _curves
    told = [_of_arm(results, arm) | line for arm in results.arms for line in tabulate(arm)]
    if table == "curves" or results.target is None:
        return told
    metric = results.target.metric
    return told + [_of_arm(results, arm) | line for arm in results.arms for line in _to_target(arm, metric)]


def _of_arm(results: ArmResults, arm: ArmResult) -> Line:
    return {**results.parameters, **arm.parameters, "arm": arm.index, "name": arm.name}


def written(results: ArmResults, table: Table, media_type: str) -> bytes:
    """The table as a file of this type."""
    return to_csv(results, table) if media_type == CSV else to_parquet(results, table)


def to_csv(results: ArmResults, table: Table) -> bytes:
    """RFC 4180, with a header; an absent value is an empty field."""
    return csv_of(columns_of(results, table), lines(results, table))


def csv_of(columns: Sequence[str], rows: Iterable[Line]) -> bytes:
    """Rows as CSV; text that a spreadsheet would compute as a formula begins with an apostrophe."""
    text = StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({column: as_text(value) for column, value in row.items()} for row in rows)
    return text.getvalue().encode()


def as_text(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def to_parquet(results: ArmResults, table: Table) -> bytes:
    """The table as a Parquet file.

    Whose it is, and what was made from what, is in the file's metadata, as JSON under `fedq`.
    """
    import pyarrow as pa
    from pyarrow import parquet

    types = dict.fromkeys(("arm", "n", "round"), pa.int64()) | dict.fromkeys(
        ("name", "metric", "figure", "verdict"), pa.string()
    )
    about = {"fedq": results.model_dump_json(exclude={"arms"})}
    settings = parameter_types([results.parameters, *(arm.parameters for arm in results.arms)])
    schema = pa.schema(
        [
            (column, types.get(column, pa.float64()) if column in COLUMNS[table] else settings[column])
            for column in columns_of(results, table)
        ],
        about,
    )
    rows = [as_typed(line, schema) for line in lines(results, table)]
    file = BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema), file)
    return file.getvalue()


def parameter_types(parameters: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Arrow types of settings: of numbers and truth values as such, of all others text."""
    import pyarrow as pa

    kinds: dict[str, set[type]] = {}
    for own in parameters:
        for path, value in own.items():
            kinds.setdefault(path, set()).add(type(value))
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    numbers = {path for path, found in kinds.items() if found == {int, float}}
    return {
        path: pa.float64()
        if path in numbers
        else types.get(next(iter(found)), pa.string())
        if len(found) == 1
        else pa.string()
        for path, found in kinds.items()
    }


def as_typed(line: Line, schema: Any) -> Line:
    """A line whose settings have the types of a schema: a number among text is text."""
    return {name: cell_of(value, schema.field(name).type) for name, value in line.items()}


def cell_of(value: Any, kind: Any) -> Any:
    """A value for a column of an Arrow type."""
    return str(value) if value is not None and str(kind) == "string" else value


def _summary(arm: ArmResult) -> Iterator[Line]:
    for metric, result in arm.metrics.items():
        for figure in FIGURES:
            yield from _line(metric, figure, getattr(result, figure))
    for total in TOTALS:
        yield from _line(total, "total", getattr(arm, total))


def _to_target(arm: ArmResult, metric: str) -> Iterator[Line]:
    """Of each cost its mean over the runs that reached the target.

    Their share of all runs is the mean of `reached_target`.
    """
    found = arm.to_target
    if found is not None:
        yield {
            "metric": metric,
            "figure": "reached_target",
            "n": found.runs,
            "mean": found.reached / found.runs,
        }
        for cost in COSTS:
            yield from _line(metric, f"{cost}_to_target", getattr(found, cost))
            yield from _line(
                metric, f"{cost}_to_target_difference", getattr(found, f"{cost}_difference", None)
            )


def _line(metric: str, figure: str, estimate: Estimate | None) -> Iterator[Line]:
    if estimate is not None:
        yield {"metric": metric, "figure": figure, **estimate.model_dump()}


def _curves(arm: ArmResult) -> Iterator[Line]:
    for metric, curve in arm.curves.items():
        points = curve.model_dump()
        points["round"] = points.pop("rounds")
        for values in zip(*points.values(), strict=True):
            yield {"metric": metric, **dict(zip(points, values, strict=True))}


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
        from fedq.client.notebook import rows_html

        return rows_html(self.columns, self.lines)

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


RUN_COLUMNS = "run_id", "arm", "arm_name", "seed"
ROUND_COLUMNS = (*RUN_COLUMNS, *(name for name in schemas.RoundRow.model_fields if name != "extra"))
"""Columns of a round, before additional measures."""
PLACE_COLUMNS = "experiment_id", "experiment_name"
ARM_COLUMNS = (
    "experiment_id",
    "experiment_name",
    "arm",
    "name",
    "status",
    "created_at",
    "rounds_done",
    "rounds_total",
    "diverged",
    "stopped",
)
ESTIMATED = "seconds", "megabytes_sent"


def rows_of(
    runs: Iterable[tuple[schemas.Run, Iterable[schemas.RoundRow]]], arms: Iterable[schemas.ArmRow]
) -> Frame:
    """The rows of runs of these arms as one table: the usual columns, one for each additional measure,
    the experiment, and the settings.
    """
    by_place = {(arm.experiment_id, arm.arm): arm for arm in arms}
    lines = [
        _round_line(run, row, by_place[run.experiment_id, run.arm]) for run, rows in runs for row in rows
    ]
    settings = names_of(arm.parameters for arm in by_place.values())
    measures = dict.fromkeys(name for line in lines for name in line)
    last = {*PLACE_COLUMNS, *settings}
    measured = [name for name in (*ROUND_COLUMNS, *measures) if name not in last]
    return Frame(tuple(dict.fromkeys((*measured, *PLACE_COLUMNS, *settings))), lines)


def _round_line(run: schemas.Run, row: schemas.RoundRow, arm: schemas.ArmRow) -> dict[str, Any]:
    place = {"run_id": run.id, "arm": run.arm, "arm_name": run.arm_name, "seed": run.seed}
    experiment = {"experiment_id": arm.experiment_id, "experiment_name": arm.experiment_name}
    return arm.parameters | experiment | place | row.model_dump(exclude={"extra"}) | row.extra


def arms_of(arms: Sequence[schemas.ArmRow], *, each_seed: bool = False) -> Frame:
    """Arms as a table: a row for each arm, with the mean of each metric over the seeds as
    `test_accuracy.final` and its statistics beside it, or one for each seed.
    """
    lines = [line for arm in arms for line in (_seed_lines(arm) if each_seed else [_arm_line(arm)])]
    settings = names_of(arm.parameters for arm in arms)
    known = dict.fromkeys(name for line in lines for name in line if name not in settings)
    return Frame(tuple(dict.fromkeys((*ARM_COLUMNS, *known, *settings))), lines)


def _arm_line(arm: schemas.ArmRow) -> Line:
    told: Line = {**arm.parameters, **{name: getattr(arm, name) for name in ARM_COLUMNS}}
    told["seeds"] = len(arm.seeds)
    for name in ESTIMATED:
        told |= _estimate_cells(name, getattr(arm, name))
    for metric, figures in arm.metrics.items():
        for which in ("best", "final"):
            told |= _estimate_cells(f"{metric}.{which}", getattr(figures, which))
    return told


def _estimate_cells(name: str, estimate: Estimate | None) -> Line:
    cells = dict.fromkeys(Estimate.model_fields) if estimate is None else estimate.model_dump()
    mean = cells.pop("mean")
    return {name: mean, **{f"{name}.{field}": value for field, value in cells.items()}}


def _seed_lines(arm: schemas.ArmRow) -> Iterator[Line]:
    common = {**arm.parameters, **{name: getattr(arm, name) for name in ARM_COLUMNS[:4]}}
    for one in arm.seeds:
        figures = {
            f"{metric}.{which}": value
            for metric, found in one.metrics.items()
            for which, value in found.items()
        }
        yield (
            common
            | {"status": one.status, "created_at": arm.created_at}
            | {"run_id": one.run_id, "seed": one.seed}
            | figures
        )


@contextmanager
def _needed(package: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        from fedq.client.errors import MissingPackageError

        raise MissingPackageError(f"needs {package}: pip install 'fedq[frames]'") from error
