"""`fedq results`, `compare`, `figure` and `report`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fedq.cli import connection
from fedq.cli.connection import connect
from fedq.cli.lazy import tables, validation
from fedq.cli.terminal import (
    AsJson,
    ExperimentId,
    checking,
    echo,
    echo_file,
    echo_json,
    stdout,
    tell,
)
from fedq.cli.views import comparison
from fedq.figures.style import FigureOptions, Horizontal
from fedq.results.presentation import ComparedFigure

if TYPE_CHECKING:
    from fedq.schemas import Comparison, Results


ENCODERS: Mapping[str, Callable[[Results], bytes]] = {
    ".json": lambda results: results.model_dump_json(indent=2).encode(),
    ".csv": lambda results: tables.to_csv(results, "summary"),
    ".parquet": lambda results: tables.to_parquet(results, "summary"),
}
"""File formats of results, by suffix; CSV and Parquet hold the summary, one value per row."""


def encoder_for(path: Path) -> Callable[[Results], bytes]:
    """The encoder of the format that the suffix of `path` names. Raises typer.BadParameter."""
    encoder = ENCODERS.get(path.suffix.lower())
    if encoder is None:
        raise typer.BadParameter(
            f"the file name must end in {', '.join(ENCODERS)}, not {path}", param_hint="--output"
        )
    return encoder


Width = Annotated[
    str | None,
    typer.Option("--width", metavar="W", help="Width: single (89 mm), double (183 mm), or a number in mm."),
]
Height = Annotated[
    float | None, typer.Option("--height", metavar="MM", help="Height in mm (default: 9/16 of the width).")
]
Font = Annotated[Literal["sans", "serif"], typer.Option(help="Font of text and formulas.")]
Size = Annotated[
    float | None,
    typer.Option("--size", metavar="PT", help="Font size (default: 10, or 8 if --width is given)."),
]
Dpi = Annotated[int, typer.Option(help="Resolution of PNG files.")]
Markers = Annotated[
    bool, typer.Option("--markers", help="Give each line its own marker, for printing in black and white.")
]
Title = Annotated[str | None, typer.Option(help="Title (default: the name of the experiment; empty: none).")]
Log = Annotated[
    Literal["none", "x", "y", "xy"] | None,
    typer.Option(help="Logarithmic axes (default: depends on the metric)."),
]
XLim = Annotated[
    str | None,
    typer.Option("--xlim", metavar="LOW:HIGH", help="Limits of the horizontal axis, e.g. 0:100 or 10:."),
]
YLim = Annotated[
    str | None,
    typer.Option("--ylim", metavar="LOW:HIGH", help="Limits of the vertical axis, e.g. 0:100 or 10:."),
]


def look_of(  # noqa: PLR0913, PLR0917 - one parameter per option
    width: Width = None,
    height: Height = None,
    font: Font = "sans",
    size: Size = None,
    dpi: Dpi = 150,
    markers: Markers = False,
    title: Title = None,
    log: Log = None,
    xlim: XLim = None,
    ylim: YLim = None,
) -> FigureOptions:
    """Style given by the options."""
    said = {"width": width, "height": height, "font": font, "size": size, "dpi": dpi, "markers": markers}
    said |= {"title": title, "log": log, "xlim": xlim, "ylim": ylim}
    return cast("FigureOptions", {name: value for name, value in said.items() if value is not None})


def drawing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `look_of` to a command, in place of its last parameter, `options`."""
    added = inspect.signature(look_of, eval_str=True).parameters
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
    shown = [*own, *added.values()]

    @wraps(command)
    def complete(**given: object) -> None:
        options = look_of(**{name: given.pop(name) for name in added})  # type: ignore[arg-type]
        command(**given, options=options)

    # Typer reads a command's options from these two.
    complete.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    complete.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return complete


Metric = Annotated[
    str | None,
    typer.Option(
        help="Metric to show (default: the main metric of the experiment).",
        autocompletion=connection.complete_metrics,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="ARM",
        help="Compare with this arm, by name or index, and not with the best of the others.",
        autocompletion=connection.complete_arms,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="METRIC:VALUE", help="Show the cost of reaching a value, e.g. test_accuracy:0.9."
    ),
]
By = Annotated[
    ComparedFigure | None,
    typer.Option(
        "--by",
        help="Figure to compare arms by: final, best or mean (area) value, or rounds, megabytes or"
        " simulated seconds to the --target (default: rounds with a --target, else final).",
    ),
]
AsFormat = Annotated[
    Literal["table", "csv"], typer.Option("--format", "-f", help="A table of one metric, or all as CSV.")
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Output file: .svg, .png, .pdf, or .csv for the numbers (default: ./EXPERIMENT.svg).",
    ),
]
Over = Annotated[
    Horizontal, typer.Option("--x", help="Horizontal axis: rounds, bytes sent, simulated time or epsilon.")
]
Theory = Annotated[
    bool, typer.Option("--theory", help="Also draw the closed-form prediction of an arm, where one exists.")
]
Arms = Annotated[
    list[str],
    typer.Argument(
        metavar="ARM...", help="An experiment id for all of its arms, or a single arm as ID:INDEX or ID:NAME."
    ),
]
Place = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Compare with the arm at this position, from 0, and not with the best of the others.",
    ),
]
Painting = Annotated[
    Path | None,
    typer.Option(
        "--figure",
        metavar="FILE",
        help="Also draw the curves to this file: .svg, .png, .pdf, or .csv for the numbers.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Output file, .html or .md (default: ./EXPERIMENT.html)."
    ),
]
Shown = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar="ARM",
        help="Draw only this arm, by name or index; may be repeated.",
        autocompletion=connection.complete_arms,
    ),
]


def results(
    experiment: ExperimentId,
    form: AsFormat = "table",
    metric: Metric = None,
    baseline: Baseline = None,
    target: Target = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Print the results of an experiment, including partial ones."""
    with connect() as client:
        read = partial(client.results, experiment, baseline=baseline, target=target, by=by)
        found = read()
        if form == "table" and not as_json and (chosen := _known(found, metric)):
            # With the best arms in this metric.
            found = read(metrics=[chosen])
    if as_json:
        echo_json(found.model_dump_json(indent=2))
    elif form == "csv":
        echo_file(ENCODERS[".csv"](found))
    else:
        stdout().print(comparison(found, metric))


@drawing
def figure(
    experiment: ExperimentId,
    output: Picture = None,
    metric: Metric = None,
    x: Over = "round",
    theory: Theory = False,
    arms: Shown = None,
    as_json: AsJson = False,
    *,
    options: FigureOptions,
) -> None:
    """Draw the curves of an experiment in publication quality and print the path of the figure."""
    with connect() as client:
        path = output or Path(f"{client.experiment(experiment).id}.svg")
        with checking("--output"):
            client.save_figure(experiment, path, metric=metric, x=x, theory=theory, arms=arms, **options)
    tell(path, as_json=as_json, file=path)


@drawing
def compare(
    arms: Arms,
    metric: Metric = None,
    baseline: Place = None,
    figure: Painting = None,
    x: Over = "round",
    as_json: AsJson = False,
    *,
    options: FigureOptions,
) -> None:
    """Compare arms of any experiments. --figure also draws their curves, in the style of the other
    options.
    """
    if figure is None and (x, options) != ("round", look_of()):
        raise typer.BadParameter("required by the options that style the figure", param_hint="--figure")
    with connect() as client, checking("--figure"):
        found = client.compare(arms, baseline=baseline)
        chosen = _known(found, metric)
        if chosen and not as_json:
            found = client.compare(arms, baseline=baseline, metrics=[chosen])
        picture = figure and client.save_comparison_figure(arms, figure, metric=chosen, x=x, **options)
    if as_json:
        echo_json(found.model_dump_json(indent=2))
    else:
        stdout().print(comparison(found, chosen))
        stdout().print(found.pairing)
    if picture:
        echo(picture, err=as_json)


def report(experiment: ExperimentId, output: Page = None, as_json: AsJson = False) -> None:
    """Write a report of an experiment with tables and figures, and print its path.

    HTML contains its figures; the figures of Markdown are files beside it.
    """
    with connect() as client:
        path = output or Path(f"{client.experiment(experiment).id}.html")
        with checking("--output"):
            client.save_report(experiment, path)
    tell(path, as_json=as_json, file=path)


def _known(results: Results | Comparison, metric: str | None) -> str | None:
    known = sorted({name for arm in results.arms for name in arm.metrics})
    if metric is not None and known and metric not in known:
        raise typer.BadParameter(validation.not_among(metric, known), param_hint="--metric")
    return metric
