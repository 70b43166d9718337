"""`fedq list`, `open`, `arms` and `diff`: find experiments and their differences."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedcore.platform import local_credentials
from fedcore.platform.status import Status
from fedq.cli import connection, views
from fedq.cli.connection import connect
from fedq.cli.lazy import parameters, presentation, specs, tables, validation
from fedq.cli.terminal import (
    AsJson,
    Limit,
    echo_json,
    show_newest,
    stdout,
    tell,
)

if TYPE_CHECKING:
    from fedq.client import Client
    from fedq.results.frames import Frame
    from fedq.schemas import Experiment

HELP = "its id, a unique beginning of it, its name, or @last"
WithStatus = Annotated[
    Status | None, typer.Option("--status", help="List only experiments with this status.")
]
Tag = Annotated[str | None, typer.Option(help="List only experiments with this tag.")]
Name = Annotated[str | None, typer.Option(help="List only experiments with exactly this name.")]
Search = Annotated[
    str | None, typer.Option(help="List only experiments whose name contains this text, ignoring case.")
]
Starred = Annotated[bool, typer.Option("--starred", help="List only experiments with a star.")]
Archived = Annotated[
    bool, typer.Option("--archived", help="List archived experiments, which are otherwise left out.")
]
OptionalExperiment = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help=f"Experiment: {HELP} (default: the list of experiments).",
        autocompletion=connection.complete_experiments,
    ),
]
OfExperiments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="EXPERIMENT",
        help=f"Only arms of these experiments: {HELP} (default: all).",
        autocompletion=connection.complete_experiments,
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        "--filter", metavar="CONDITION", help="Condition, e.g. 'algorithm.kind = fedprox and local.lr < 0.1'."
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMNS",
        help="Columns to sort by, - before a descending one, e.g. -test_accuracy.best,local.lr.",
    ),
]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        metavar="COLUMNS",
        help=(
            "Settings and metrics to show, e.g. local.lr,test_accuracy.final (default: the settings that"
            " differ, and the headline metrics)."
        ),
    ),
]
EachSeed = Annotated[bool, typer.Option("--each-seed", help="Show a row for each seed.")]
MostArms = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of arms to show.")]
Compared = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help=f"Experiment: {HELP}. One of its arms: EXPERIMENT:INDEX or EXPERIMENT:NAME.",
        autocompletion=connection.complete_experiments,
    ),
]


def list_(
    with_status: WithStatus = None,
    tag: Tag = None,
    name: Name = None,
    search: Search = None,
    starred: Starred = False,
    archived: Archived = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List experiments, newest first."""
    with connect() as client:
        found = client.experiments(
            status=with_status,
            tag=tag,
            name=name,
            search=search,
            starred=starred or None,
            archived=archived or None,
        )
        show_newest(found, limit, views.experiments, as_json=as_json)


def open_(experiment: OptionalExperiment = None, as_json: AsJson = False) -> None:
    """Open the page of an experiment in a browser and print its address."""
    with connect() as client:
        path = "/" if experiment is None else f"/experiments/{client.experiment(experiment).id}"
        if experiment is None:
            client.me()
        address = client.url.rstrip("/")
    # As `fedq up --open` does: browsers do not send the fragment.
    key = local_credentials.discover(address)
    webbrowser.open(f"{address}{path}" if key is None else f"{address}/sign-in?next={path}#{key}")
    tell(f"{address}{path}", as_json=as_json, url=f"{address}{path}")


def arms(
    experiments: OfExperiments = None,
    condition: Condition = None,
    order: Order = None,
    fields: Fields = None,
    each_seed: EachSeed = False,
    limit: MostArms = 50,
    as_json: AsJson = False,
) -> None:
    """List arms of all experiments with their settings and metrics, newest experiment first."""
    with connect() as client:
        found = client.arms(
            filter=condition,
            sort=order,
            fields=fields,
            experiments=experiments,
            each_seed=each_seed,
            limit=limit,
        )
    if as_json:
        echo_json(json.dumps(found.lines, indent=2, ensure_ascii=False, default=str))
    else:
        stdout().print(_arms_table(found, all_settings=fields is not None))


def _arms_table(found: Frame, *, all_settings: bool) -> Table:
    """Table of arms: settings that differ, or all, and metrics with their spread."""
    metrics = [column for column in found.columns if _is_metric(column)]
    statistics = tuple(f"{name}." for name in (*metrics, *tables.ESTIMATED))
    others = {*tables.ARM_COLUMNS, *tables.ESTIMATED, *metrics, "seeds", "run_id", "seed"}
    settings = [
        column for column in found.columns if column not in others and not column.startswith(statistics)
    ]
    if not all_settings:
        settings = [path for path in settings if len({repr(line.get(path)) for line in found}) > 1]
    metrics = [metric for metric in metrics if any(line.get(metric) is not None for line in found)]
    seed = ["seed"] if "seed" in found.columns else []
    titles = [*settings, *(_metric_title(metric) for metric in metrics)]
    rows = (
        (
            f"{line['experiment_id']}:{line['arm']}",
            line["name"],
            *(line[column] for column in seed),
            line["status"],
            *(line.get(path) for path in settings),
            *(_metric_cell(metric, line) for metric in metrics),
        )
        for line in found
    )
    return views.table(("arm", "name", *seed, "status", *titles), rows)


def _is_metric(column: str) -> bool:
    return column.endswith((".best", ".final"))


def _metric_title(metric: str) -> str:
    name, _, figure = metric.rpartition(".")
    return f"{figure} {presentation.metric_title(name)}"


def _metric_cell(metric: str, line: Mapping[str, Any]) -> str | None:
    name = metric.rpartition(".")[0]
    mean, std = line.get(metric), line.get(f"{metric}.std")
    if mean is None:
        return None
    return presentation.metric_value(name, mean) + (
        "" if std is None else f" ± {presentation.metric_value(name, std)}"
    )


def diff(a: Compared, b: Compared, as_json: AsJson = False) -> None:
    """Show in which fields of their specifications, and in which versions, two experiments or arms
    differ.
    """
    with connect() as client:
        described = [_described(client, one) for one in (a, b)]
    ids = [id for id, _ in described]
    first, second = (dict(parameters.flatten_document(document)) for _, document in described)
    changed = [path for path in {**first, **second} if first.get(path) != second.get(path)]
    if as_json:
        found = [{"path": path, "a": first.get(path), "b": second.get(path)} for path in changed]
        tell(None, as_json=True, a=ids[0], b=ids[1], differences=found)
    elif changed:
        rows = ((path, first.get(path), second.get(path)) for path in changed)
        stdout().print(views.table(("field", *ids), rows))
    else:
        stdout().print(Text(f"{ids[0]} and {ids[1]} have the same specification"))


def _described(client: Client, reference: str) -> tuple[str, dict[str, Any]]:
    """Id and document of an experiment, or of one of its arms."""
    given, _, arm = reference.partition(":")
    experiment = client.experiment(given)
    made_with = {"provenance": experiment.provenance}
    if not arm:
        return experiment.id, experiment.specification | made_with
    index = _arm_index(experiment, arm)
    spec = specs.stored_arms(experiment.specification)[index].spec
    return f"{experiment.id}:{index}", spec.model_dump(mode="json") | made_with


def _arm_index(experiment: Experiment, wanted: str) -> int:
    known: Sequence[str] = [arm.name for arm in experiment.arms]
    if wanted in known:
        return known.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(known):
        return int(wanted)
    raise typer.BadParameter(
        f"the arm of {experiment.id} {validation.not_among(wanted, known)}", param_hint="EXPERIMENT"
    )
