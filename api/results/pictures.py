"""Figures: drawn one at a time, or as the numbers in them, each a link away from the other."""

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import Depends, Path, Query, Request, Response

from api.http.dependencies import NO_NUL, state_of
from api.http.gates import OwnerGate
from api.http.problems import InvalidDocumentError, describe_errors
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.statistics.summary import HEADLINES, choose_headline
from fedq.figures.drawing import Format, draw, is_measured
from fedq.figures.style import (
    NARROWEST_MM,
    WIDE_MM,
    WIDEST_MM,
    WIDTHS,
    FigureStyle,
    Font,
    Horizontal,
    Limits,
    Log,
)
from fedq.results.curves import Window
from fedq.results.summaries import Metric, metric_names
from fedq.results.tables import CSV, to_csv
from fedq.schemas import ArmResults, Theory

Result = TypeVar("Result")

_NUMBER = r"[-+]?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][-+]?[0-9]{1,2})?"
_LIMITS = re.compile(rf"({_NUMBER})?:({_NUMBER})?")
_MILLIMETRES = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?")
POINTS_PER_INCH = 72
MAX_PIXELS = 25_000_000
"""Maximum of a PNG: Matplotlib needs 6 bytes for each."""
ACROSS, DOWN = 14, 10
"""Minimum width and height of a figure in multiples of its font size."""
PICTURES: Mapping[Format, str] = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
"""Media types by format."""
FIGURE: dict[int | str, Any] = {
    200: {
        "description": "The picture.",
        "content": {
            "image/svg+xml": {"schema": {"type": "string"}},
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "application/pdf": {"schema": {"type": "string", "format": "binary"}},
            "text/csv": {"schema": {"type": "string"}},
        },
        "headers": {"Link": {"description": "URL of the numbers as CSV.", "schema": {"type": "string"}}},
    },
    **describe_errors(404, 422),
}
"""OpenAPI responses of a request for a picture."""
Form = Annotated[
    Literal[Format, "csv"],
    Path(description="File format; `csv` returns the points of the curves, one per row."),
]

Drawn = Annotated[
    Metric | None,
    Query(description="Metric to draw; by default, the first available of " + ", ".join(HEADLINES) + "."),
]
X = Annotated[
    Horizontal,
    Query(
        description=(
            "Horizontal axis: rounds, megabytes sent in both directions, seconds on the simulated clock, or"
            " epsilon of differential privacy."
        )
    ),
]

Read = Callable[[Sequence[Metric], Window], ArmResults]
"""Function that reads results with these metrics and this part of their curves."""


async def _look(  # noqa: PLR0913, PLR0917 - one parameter per option
    width: Annotated[
        str | None, Query(max_length=20, description="Width: `single` (89 mm), `double` (183 mm), or in mm.")
    ] = None,
    height: Annotated[
        float | None, Query(ge=20, le=500, description="Height in mm (default: 9/16 of the width).")
    ] = None,
    font: Annotated[Font, Query(description="Font of text and formulas.")] = "sans",
    size: Annotated[
        float | None,
        Query(
            ge=4,
            le=32,
            description="Font size in pt (default: 10, or 8 with a width; smaller if the text does not fit).",
        ),
    ] = None,
    dpi: Annotated[
        int, Query(ge=50, le=600, description="Resolution of a PNG, which may have 25 million pixels.")
    ] = 150,
    markers: Annotated[
        bool, Query(description="Give each line its own marker, for printing in black and white.")
    ] = False,
    title: Annotated[
        str | None,
        Query(max_length=200, pattern=NO_NUL, description="Title (default: the name; empty: none)."),
    ] = None,
    log: Annotated[
        Log | None, Query(description="Logarithmic axes (default: depends on the metric).")
    ] = None,
    xlim: Annotated[
        str | None,
        Query(
            max_length=80,
            examples=["0:100"],
            description="Limits of the horizontal axis, e.g. `0:100`, `10:`.",
        ),
    ] = None,
    ylim: Annotated[
        str | None,
        Query(max_length=80, examples=["0.5:1"], description="Limits of the vertical axis, e.g. `0.5:1`."),
    ] = None,
) -> FigureStyle:
    ends = _limits("xlim", xlim), _limits("ylim", ylim)
    look = FigureStyle(
        _millimetres(width), height, font, 8.0 if width else 10.0, dpi, markers, title, log, *ends
    )
    most = min(
        length * POINTS_PER_INCH / least for length, least in zip(look.inches, (ACROSS, DOWN), strict=True)
    )
    if size is not None and size > most:
        raise InvalidDocumentError.at(
            "?size", f"{size:g} pt is too large for a figure of this size; the maximum is {most:.1f} pt"
        )
    return replace(look, size_pt=min(look.size_pt, most) if size is None else size)


Looked = Annotated[FigureStyle, Depends(_look)]


def select_results(read: Read, metric: Metric | None, points: int, x: Horizontal) -> tuple[ArmResults, str]:
    """Return the results to draw and the metric to draw of them.

    Raises ResourceNotFoundError if there are rows but none can be drawn.
    """
    found = read(metric_names() if metric is None else [metric], Window(points))
    known = _known(found)
    if metric is not None and metric not in known and (others := _known(read(metric_names(), Window(2)))):
        raise ResourceNotFoundError(
            f"no results of {found.name!r} for {metric}; available: {', '.join(sorted(others))}"
        )
    chosen = choose_headline(known) if metric is None else metric
    curves = [arm.curves[chosen] for arm in found.arms if chosen in arm.curves]
    if curves and not any(is_measured(curve, x) for curve in curves):
        raise ResourceNotFoundError(
            f"no run of {found.name!r} has a simulated clock, which requires `systems.devices`"
        )
    return found, chosen


def _known(results: ArmResults) -> set[str]:
    """Return the metrics that have curves."""
    return {name for arm in results.arms for name in arm.curves}


def render_figure(
    request: Request,
    found: ArmResults,
    metric: str,
    x: Horizontal,
    form: Form,
    style: FigureStyle,
    theory: Theory | None = None,
) -> Response:
    """Return a figure, or the numbers in it; raises InvalidDocumentError."""
    _check(style, metric)
    if form == "csv":
        drawn = [
            one.model_copy(update={"curves": {metric: one.curves[metric]}})
            for one in found.arms
            if metric in one.curves
        ]
        return Response(to_csv(found.model_copy(update={"arms": drawn}), "curves"), media_type=CSV)
    url = request.url
    numbers = quote(str(url.replace(path=f"{url.path.rpartition('.')[0]}.csv")), safe=":/?&=%+,~[]")
    drawing = draw(found, metric, x, form, theory, style=style, source=numbers)
    return Response(
        drawing, media_type=PICTURES[form], headers={"Link": f'<{numbers}>; rel="describedby"; type="{CSV}"'}
    )


async def answer_in_thread(
    request: Request, principal: Principal, form: Form, style: FigureStyle, work: Callable[[], Response]
) -> Response:
    """Return the result of `work`, called in a thread; drawings one at a time.

    Raises InvalidDocumentError for too many pixels.
    """
    if form == "png" and style.pixels > MAX_PIXELS:
        dpi = int(style.dpi * (MAX_PIXELS / style.pixels) ** 0.5)
        size = f"a PNG of this size would have {style.pixels / 1e6:.0f} million pixels at {style.dpi} dpi"
        raise InvalidDocumentError.at(
            "?dpi",
            f"{size}, and may have {MAX_PIXELS / 1e6:.0f} million: at most {dpi} dpi, or a smaller width or"
            " height",
        )
    gate = state_of(request).reading_gate if form == "csv" else drawing_gate_of(request)
    return await gate.run(principal.owner, work)


def _check(style: FigureStyle, metric: str) -> None:
    """Raise InvalidDocumentError for limits that a logarithmic axis cannot have."""
    axes: tuple[tuple[Literal["x", "y"], Limits], ...] = (("x", style.xlim), ("y", style.ylim))
    for axis, limits in axes:
        if style.logarithmic(axis, metric) and any(limit is not None and limit <= 0 for limit in limits):
            raise InvalidDocumentError.at(f"?{axis}lim", "must be above 0 where the axis is logarithmic")


def _millimetres(text: str | None) -> float:
    if text is None or text in WIDTHS:
        return WIDE_MM if text is None else WIDTHS[text]
    found = float(text) if _MILLIMETRES.fullmatch(text) else inf
    if not NARROWEST_MM <= found <= WIDEST_MM:
        raise InvalidDocumentError.at(
            "?width", f"must be single, double, or {NARROWEST_MM:g} to {WIDEST_MM:g} mm, not {text!r}"
        )
    return found


def _limits(name: str, text: str | None) -> Limits:
    if text is None:
        return None, None
    found = _LIMITS.fullmatch(text)
    low, high = (None if end is None else float(end) for end in found.groups()) if found else (inf, inf)
    if not all(isfinite(end) for end in (low, high) if end is not None) or (
        low is not None and high is not None and low >= high
    ):
        raise InvalidDocumentError.at(
            f"?{name}", f"must be lower and upper limit, e.g. 0:100, 10: or :1, not {text!r}"
        )
    return low, high


class DrawingGate(OwnerGate):
    """Runs drawings one after another."""

    def __init__(self) -> None:
        super().__init__(1)

    async def run(self, owner: str, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, and free its figure."""
        return await super().run(owner, partial(_call_and_collect, work))


def drawing_gate_of(request: Request) -> DrawingGate:
    """Return the gate of the application that serves a request."""
    gate: DrawingGate = request.app.state.drawing_gate
    return gate


async def _drawing_gate(request: Request) -> DrawingGate:
    return drawing_gate_of(request)


DrawingGateDep = Annotated[DrawingGate, Depends(_drawing_gate)]


def _call_and_collect(draw: Callable[[], Result]) -> Result:
    """Call `draw`, then free the figure: its objects refer to each other, and are too few to
    trigger the cyclic collector soon.

    `Figure.clear` is not enough: a legend keeps the renderer, with all pixels, in a cycle.
    """
    try:
        return draw()
    finally:
        gc.collect()
