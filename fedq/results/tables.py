"""Results as tables: long form, one figure a line, for data frames and spreadsheets."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from typing import Any, Literal

from fedq.schemas import ArmResult, ArmResults, Estimate

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
    "curves": ("arm", "name", "metric", "round", "megabytes", "simulated_seconds", "n", "mean", "std"),
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of what spreadsheets take for a formula (OWASP, CSV injection)."""
FIGURES = ("best", "final", "area", "best_difference", "final_difference", "area_difference")
COSTS = ("rounds", "megabytes", "simulated_seconds", "seconds")
"""Costs of reaching a target."""
TOTALS = ("local_steps", "megabytes_up", "megabytes_down", "megabytes_sent", "seconds", "simulated_seconds")


def lines(results: ArmResults, table: Table) -> list[Line]:
    """The lines of a table, with `COLUMNS[table]`; a figure that no run has is left out."""
    tabulate = _summary if table == "summary" else _curves
    told = [{"arm": arm.index, "name": arm.name, **line} for arm in results.arms for line in tabulate(arm)]
    if table == "curves" or results.target is None:
        return told
    metric = results.target.metric
    return told + [
        {"arm": arm.index, "name": arm.name, **line}
        for arm in results.arms
        for line in _to_target(arm, metric)
    ]


def written(results: ArmResults, table: Table, media_type: str) -> bytes:
    """The table as a file of this type."""
    return to_csv(results, table) if media_type == CSV else to_parquet(results, table)


def to_csv(results: ArmResults, table: Table) -> bytes:
    """RFC 4180, with a header; an absent value is an empty field."""
    return csv_of(COLUMNS[table], lines(results, table))


def csv_of(columns: Sequence[str], rows: Iterable[Line]) -> bytes:
    """Rows as CSV; text that a spreadsheet would compute as a formula begins with an apostrophe."""
    text = StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({column: _as_text(value) for column, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _as_text(value: Any) -> Any:
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
    schema = pa.schema([(column, types.get(column, pa.float64())) for column in COLUMNS[table]], about)
    file = BytesIO()
    parquet.write_table(pa.Table.from_pylist(lines(results, table), schema), file)
    return file.getvalue()


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
