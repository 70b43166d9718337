"""`fedq results`, `figure`, `model`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli import completion
from api.cli.comparison import comparison
from api.cli.connection import connect
from api.cli.encodings import Encoding, encode
from api.cli.looks import drawing, look_of
from api.cli.terminal import AsJson, ExperimentId, stdout, tell
from api.client import Comparison, Results
from api.client.calls.outcomes import Horizontal
from api.client.looks import Look


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Metric = Annotated[str | None, typer.Option(help="Which metric; absent, the most telling one that there is.")]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="ARM", help="The arm that others are compared with, by name or index; absent, the first.", autocompletion=completion.arms
    ),
]
Target = Annotated[str | None, typer.Option(metavar="METRIC:VALUE", help="Tell what it took each arm there, as test_accuracy:0.9.")]
AsFormat = Annotated[Format, typer.Option("--format", help="A table of one metric, or all figures as JSON or CSV.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `fedq status EXPERIMENT` lists it.")]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write it: .svg, .png, .pdf, or .csv for the numbers; absent, EXPERIMENT.svg here."),
]
Over = Annotated[Horizontal, typer.Option("--x", help="Draw over rounds, the bytes sent, or the simulated time.")]
Theory = Annotated[bool, typer.Option("--theory", help="Lay over what closed forms say of an arm, where one applies.")]
Arms = Annotated[
    list[str],
    typer.Argument(metavar="ARM...", help="An experiment by its id, with all of its arms, or one of them as ID:INDEX or ID:NAME."),
]
Place = Annotated[int, typer.Option(min=0, help="The arm that the others are compared with: its place in the comparison, from 0.")]
Painting = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the curves there too: .svg, .png, .pdf, or .csv for the numbers.")
]
Page = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Where to write it, .html or .md; absent, EXPERIMENT.html here.")
]
Shown = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="ARM", help="Only this arm, by name or index; may be repeated.", autocompletion=completion.arms),
]
ModelFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it; absent, RUN.safetensors here.")]


def results(
    experiment: ExperimentId,
    form: AsFormat = Format.TABLE,
    metric: Metric = None,
    baseline: Baseline = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Print what came out of an experiment, as far as it is; --json is short for --format json."""
    with connect() as client:
        found = client.results(experiment, baseline=baseline, target=target)
    match Format.JSON if as_json else form:
        case Format.TABLE:
            stdout().print(comparison(found, _known(found, metric)))
        case other:
            typer.echo(encode(found, Encoding(other)), nl=other is Format.JSON)


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
    look: Look,
) -> None:
    """Draw the curves of an experiment, fit for a paper, and print where the picture is."""
    path = output or Path(f"{experiment}.svg")
    with connect() as client:
        try:
            client.save_figure(experiment, path, metric=metric, x=x, theory=theory, arms=arms, **look)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--output") from error
    tell(path, as_json=as_json, file=path)


@drawing
def compare(
    arms: Arms,
    metric: Metric = None,
    baseline: Place = 0,
    figure: Painting = None,
    x: Over = "round",
    as_json: AsJson = False,
    *,
    look: Look,
) -> None:
    """Print arms of any experiments side by side; --figure draws their curves too, as the other options say, and prints where it is."""
    if figure is None and (x, look) != ("round", look_of()):
        raise typer.BadParameter("say where the picture is to be written, of which another option tells", param_hint="--figure")
    with connect() as client:
        try:
            found = client.compare(arms, baseline=baseline)
            chosen = _known(found, metric)
            picture = figure and client.save_comparison_figure(arms, figure, metric=chosen, x=x, **look)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--figure") from error
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        stdout().print(comparison(found, chosen))
        stdout().print(found.pairing)
    if picture:
        typer.echo(picture, err=as_json)


def report(experiment: ExperimentId, output: Page = None, as_json: AsJson = False) -> None:
    """Write an experiment on one page that stands by itself, tables and figures in it, and print where it is."""
    path = output or Path(f"{experiment}.html")
    with connect() as client:
        try:
            client.save_report(experiment, path)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--output") from error
    tell(path, as_json=as_json, file=path)


def model(run: RunId, output: ModelFile = None, as_json: AsJson = False) -> None:
    """Fetch the final model of a run and print where it is."""
    with connect() as client:
        path = client.save_model(run, output or Path(f"{run}.safetensors"))
    tell(path, as_json=as_json, file=path)


def _known(results: Results | Comparison, metric: str | None) -> str | None:
    known = sorted({name for arm in results.arms for name in arm.metrics})
    if metric is not None and known and metric not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}, not {metric!r}", param_hint="--metric")
    return metric
