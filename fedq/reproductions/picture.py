"""Figure of a sheet: a column for each panel and swept value, a row for each metric and swept
value, and a line for each arm.
"""

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice, product
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from fedcore.presets.sheet import Drawing
from fedcore.spec.sweep import format_label
from fedq.figures.drawing import STYLE, FigureAxes, Format, cycle_strokes, draw_line, drawing, escape_dollars
from fedq.reproductions.sheets import Part, SheetReproduction
from fedq.schemas import ArmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN, LINE_IN = 4.0, 3.0, 0.25
"""Size of one cell of the grid, and of a line of the legend below it."""
LETTER_IN, STROKE_IN = 0.1, 0.7
"""Width of a letter, and of the sample line and space beside a name in the legend."""


class Facet(NamedTuple):
    """Arms that one row or column shows: all, or the arms with one value of a swept path."""

    path: str | None = None
    value: Any = None

    @property
    def label(self) -> str:
        """Part of the arms' names that describes the facet; empty if it shows all arms."""
        return format_label(self.path, self.value) if self.path else ""

    def shows(self, arm: ArmResult) -> bool:
        """Return True if the facet includes `arm`."""
        return self.path is None or arm.settings.get(self.path) == self.value


class FigureRow(NamedTuple):
    """Metric and arms of one row of the grid."""

    metric: str
    facet: Facet


class FigureColumn(NamedTuple):
    """Panel and arms of one column of the grid."""

    part: Part
    facet: Facet

    @property
    def title(self) -> str:
        """Title above the column."""
        return ", ".join(
            filter(
                None,
                (self.part.title if self.part.preset.panel or not self.facet.path else "", self.facet.label),
            )
        )


def draw(reproduction: SheetReproduction, form: Format) -> bytes:
    """Draw the figure of a sheet. Equal results give equal bytes of SVG."""
    layout = reproduction.sheet.figure
    assert layout is not None
    rows, columns = _grid(layout, reproduction.parts)
    with drawing:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        with rc_context(dict(STYLE)):
            styles, width = _styles(reproduction.parts, layout), WIDTH_IN * len(columns)
            across = names_in_a_line(styles, width)
            height = HEIGHT_IN * len(rows) + LINE_IN * (1 + ceil(len(styles) / across))
            figure = Figure(figsize=(width, height), layout="constrained")
            grid = figure.subplots(len(rows), len(columns), squeeze=False)
            for axes, (row, column) in zip(grid.flat, product(rows, columns), strict=True):
                _fill(axes, row, column, layout, styles)
            for axes, column in zip(grid[0], columns, strict=True):
                axes.set_title(escape_dollars(over_a_column(column.title)))
            for axes, row in zip(grid[:, 0], rows, strict=True):
                axes.set_ylabel(
                    escape_dollars("\n".join(filter(None, (row.metric.replace("_", " "), row.facet.label))))
                )
            handles = {
                text: handle
                for axes in grid.flat
                for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=across, frameon=False
            )
            picture = BytesIO()
            figure.savefig(picture, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
            return picture.getvalue()


def names_in_a_line(names: Iterable[str], width_in: float) -> int:
    """Number of legend entries that fit `width_in` inches, at least one."""
    return max(1, int(width_in / (STROKE_IN + LETTER_IN * max(map(len, names), default=0))))


def over_a_column(title: str) -> str:
    """Wrap `title` to the width of a column, so that neighbouring titles do not overlap."""
    return fill(title, int(WIDTH_IN / LETTER_IN))


def _grid(layout: Drawing, parts: Sequence[Part]) -> tuple[list[FigureRow], list[FigureColumn]]:
    arms = [arm for part in parts for arm in part.results.arms]
    rows = [FigureRow(metric, facet) for metric, facet in product(layout.metrics, _facets(layout.rows, arms))]
    return rows, [
        FigureColumn(part, facet) for part in parts for facet in _facets(layout.columns, part.results.arms)
    ]


def _facets(path: str | None, arms: Iterable[ArmResult]) -> Iterator[Facet]:
    if path is None:
        yield Facet()
        return
    seen: list[Any] = []
    for value in (arm.settings[path] for arm in arms if path in arm.settings):
        if value not in seen:
            seen.append(value)
            yield Facet(path, value)


def _styles(parts: Sequence[Part], layout: Drawing) -> dict[str, tuple[str, str]]:
    """Colour and dash by name, the same in all cells."""
    names = dict.fromkeys(_name(arm, layout) for part in parts for arm in part.results.arms)
    return dict(zip(names, islice(cycle_strokes(), len(names)), strict=True))


def _fill(
    axes: "Axes", row: FigureRow, column: FigureColumn, layout: Drawing, styles: dict[str, tuple[str, str]]
) -> None:
    arms = [
        arm
        for arm in column.part.results.arms
        if row.metric in arm.curves and row.facet.shows(arm) and column.facet.shows(arm)
    ]
    curves = [arm.curves[row.metric] for arm in arms]
    figure_axes = FigureAxes.around([curve.rounds for curve in curves], curves, log_y=layout.scale == "log")
    figure_axes.x.set_up(axes)
    figure_axes.y.set_up(axes)
    for arm, curve in zip(arms, curves, strict=True):
        name = _name(arm, layout)
        draw_line(axes, figure_axes, curve, curve.rounds, name, *styles[name])
    axes.set_xlabel("round")


def _name(arm: ArmResult, layout: Drawing) -> str:
    """Name of an arm without the parts given by its row and column."""
    said = {
        format_label(path, arm.settings[path])
        for path in (layout.rows, layout.columns)
        if path and path in arm.settings
    }
    return ", ".join(part for part in arm.name.split(", ") if part not in said) or arm.name
