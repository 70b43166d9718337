"""A sheet's figure: a column for each panel, a row for each metric and facet, a line for each arm."""

import json
from collections.abc import Iterator
from io import BytesIO
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

from api.client import Results
from api.figures import STYLE, Format, drawing, line, plain, strokes
from api.reproductions import Part, Reproduction
from api.schemas import ArmResult
from fedcore.presets.sheet import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN = 4.0, 3.0
"""Of one field of the grid."""


class Row(NamedTuple):
    """What one row of the grid shows."""

    metric: str
    facet: str | None
    """The value of the swept path, as JSON; None where the figure has no facets."""


def draw(reproduction: Reproduction, form: Format) -> bytes:
    """The picture of a sheet that has a figure; equal results make equal bytes of SVG."""
    layout = reproduction.sheet.figure
    assert layout is not None
    rows = list(_rows(layout, [part.results for part in reproduction.parts]))
    with drawing:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        with rc_context(dict(STYLE)):
            size = WIDTH_IN * len(reproduction.parts), HEIGHT_IN * len(rows) + 0.6
            figure = Figure(figsize=size, layout="constrained")
            grid = figure.subplots(len(rows), len(reproduction.parts), squeeze=False)
            styles: dict[str, tuple[str, str]] = {}
            for (row, column), axes in zip(product(range(len(rows)), range(len(reproduction.parts))), grid.flat, strict=True):
                _fill(axes, reproduction.parts[column], rows[row], layout, styles, first=column == 0, top=row == 0)
            handles = {text: handle for axes in grid.flat for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
            picture = BytesIO()
            figure.savefig(picture, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
            return picture.getvalue()


def _rows(layout: Drawing, all_results: list[Results]) -> Iterator[Row]:
    facets: list[str | None] = [None]
    if layout.facet is not None:
        values = (arm.settings.get(layout.facet) for results in all_results for arm in results.arms)
        facets = list(dict.fromkeys(json.dumps(value) for value in values))
    for metric, facet in product(layout.metrics, facets):
        yield Row(metric, facet)


def _fill(axes: "Axes", part: Part, row: Row, layout: Drawing, styles: dict[str, tuple[str, str]], *, first: bool, top: bool) -> None:
    for arm in part.results.arms:
        curve = arm.curves.get(row.metric)
        if curve is None or (row.facet is not None and json.dumps(arm.settings.get(layout.facet or "")) != row.facet):
            continue
        name = label(arm, layout.facet)
        if name not in styles:
            styles[name] = next(islice(strokes(), len(styles), None))
        line(axes, curve, curve.rounds, name, *styles[name])
    axes.set_yscale(layout.scale)
    axes.set_xlabel("round")
    if top:
        axes.set_title(plain(part.title), wrap=True)
    if first:
        facet = "" if row.facet is None else f"\n{(layout.facet or '').rpartition('.')[2]} = {row.facet}"
        axes.set_ylabel(row.metric.replace("_", " ") + facet)


def label(arm: ArmResult, facet: str | None) -> str:
    """The name of an arm without what its row says."""
    if facet is None or facet not in arm.settings:
        return arm.name
    own = f"{facet.rpartition('.')[2]}={_show(arm.settings[facet])}"
    return ", ".join(part for part in arm.name.split(", ") if part != own) or arm.name


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
