"""`fedq submit`, `status`, `watch`, `search`, `cancel`, `pause`, `resume`, `retry`, `extend`, `edit`,
`share` and `delete`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedcore.platform.status import Status
from fedq.cli import connection, views
from fedq.cli.connection import connect
from fedq.cli.lazy import bodies, clients, presentation, yaml_documents
from fedq.cli.results import encoder_for
from fedq.cli.terminal import (
    AsJson,
    ExitCode,
    ExperimentId,
    complain,
    conclude,
    echo,
    echo_json,
    follow,
    print_json,
    show,
    stderr,
    stdout,
    tell,
)
from fedq.cli.views import comparison, table

if TYPE_CHECKING:
    from fedq.client.bodies import Specification
    from fedq.schemas import Experiment, SearchPage

SWEEP = "sweep"


def overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Document built from `path=value` strings; paths are dotted, values YAML.

    Raises typer.BadParameter.
    """
    document: dict[str, Any] = {}
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not (path and sign):
            raise typer.BadParameter(
                f"{assignment!r} is not of the form path=value, e.g. local.lr=0.1", param_hint="--set"
            )
        _assign(document, path, _value(assignment, text))
    return document


def _assign(document: dict[str, Any], path: str, value: Any) -> None:
    *blocks, field = _keys(path)
    for block in blocks:
        document = document.setdefault(block, {})
        if not isinstance(document, dict):
            raise typer.BadParameter(
                f"{path}: {block} already has a value and cannot also be a block", param_hint="--set"
            )
    document[field] = value


def _keys(path: str) -> list[str]:
    """Keys of a dotted path; the fields that a sweep varies are themselves dotted paths."""
    head, _, rest = path.partition(".")
    return [head, rest] if head == SWEEP and rest else path.split(".")


def _value(assignment: str, text: str) -> Any:
    try:
        return yaml_documents.load(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"the value of {assignment!r} is not valid YAML: {error}", param_hint="--set"
        ) from error


STDIN = Path("-")

SpecificationFile = Annotated[
    Path | None,
    typer.Argument(metavar="SPEC", help="Specification file in JSON or YAML; - reads standard input."),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="A preset instead of a file, listed by `fedq presets`.",
        autocompletion=connection.complete_presets,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field, e.g. --set rounds=20 --set local.lr=0.1; may be repeated.",
        autocompletion=connection.complete_kinds,
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the experiment is finished, then print its results.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Wait, and also write the results to this file: .json, .csv or .parquet.",
    ),
]
Code = Annotated[
    Path | None,
    typer.Option(
        "--code",
        metavar="FOLDER",
        help="Folder with your own components; a service receives it as a code bundle.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Idempotency key: repeating a request with the same key and specification submits nothing new.",
    ),
]


def submit(
    spec: SpecificationFile = None,
    preset: PresetName = None,
    assignments: Assignments = None,
    wait: Wait = False,
    output: Output = None,
    idempotency_key: Key = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Submit an experiment and print its id, or with --wait its results."""
    specification, changes = choose_specification(spec, preset), overrides(assignments or [])
    encoder = None if output is None else encoder_for(output)
    with connect() as client, locate_errors(None if changes else spec):
        experiment = client.submit(specification, changes, idempotency_key=idempotency_key, code=code)
        if not (wait or output):
            print_json(experiment) if as_json else echo(experiment.id)
            return
        stderr().print(f"{experiment.id} {experiment.name}")
        ended = follow(client, experiment.id)
        results = client.results(experiment.id)
    show(results, comparison, as_json=as_json)
    if output is not None and encoder is not None:
        output.write_bytes(encoder(results))
    conclude(ended)


@contextmanager
def locate_errors(file: Path | None) -> Iterator[None]:
    """Add the lines of the file to the errors that the service finds in it."""
    try:
        yield
    except clients.InvalidRequestError as error:
        if file is not None and file != STDIN:
            from fedq.validation_errors import locate_errors

            flaws = locate_errors(error.flaws, file.read_text(encoding="utf-8"))
            error.problem = error.problem.model_copy(update={"errors": flaws})
        raise


def choose_specification(spec: Path | None, preset: str | None) -> Specification:
    """The specification file, or the name of the preset; raises typer.BadParameter unless one is given."""
    match spec, preset:
        case None, str():
            return preset
        case Path(), None:
            return bodies.parse(sys.stdin.read(), "standard input") if spec == STDIN else spec
        case _:
            raise typer.BadParameter("give either a specification file or --preset NAME", param_hint="SPEC")


def status(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Show an experiment and its runs. With --json, the runs are in the field `runs` of the
    experiment.
    """
    with connect() as client:
        found = client.experiment(experiment)
        runs = client.runs(found.id)
    if as_json:
        documents = [run.model_dump(mode="json") for run in runs]
        tell(None, as_json=True, **found.model_dump(mode="json"), runs=documents)
    else:
        stdout().print(views.experiment(found, runs))


def watch(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Follow an experiment until it is finished.

    With --json, print every event from the first round, one per line.
    """
    with connect() as client:
        experiment = client.experiment(experiment).id
        if as_json:
            for event in client.stream(experiment):
                echo_json(event.model_dump_json())
        else:
            follow(client, experiment)
        conclude(client.experiment(experiment))
    if not as_json:
        echo(f"{experiment} succeeded")


def search(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Show which arms a search promoted and stopped at each rung; for a study, its trials in order."""
    with connect() as client:
        show(client.search(experiment), search_view, as_json=as_json)


def search_view(item: SearchPage) -> RenderableType:
    """Table of the arms at each rung, best first."""
    if item.kind == "study":
        return study_view(item)
    rungs = ", ".join(map(str, item.rungs))
    head = (
        f"{item.kind}: {presentation.counted(item.arms, 'arm')}, one in {item.eta} is promoted at rounds"
        f" {rungs}, up to round {item.rounds}"
    )
    known = sorted(item.items, key=lambda one: (one.rung, one.verdict is None, one.rank or 0, one.sequence))
    rows = [
        (
            one.name,
            one.round,
            _value_of(item.metric, one.value),
            None if one.rank is None else f"{one.rank} of {one.field}",
            one.places,
            one.verdict,
        )
        for one in known
    ]
    columns = ("arm", "round", presentation.metric_title(item.metric), "rank", "places", "verdict")
    return Group(Text(head), table(columns, rows))


def study_view(item: SearchPage) -> RenderableType:
    """Table of the trials of a study that have ended, in order: with the best value so far, or of
    several metrics with the Pareto front; and with the round at which a trial was stopped.
    """
    best = max if item.mode == "max" else min
    so_far: float | None = None
    rows = []
    ended = item.ended_trials()
    metrics = (item.metric, *(one.metric for one in item.further_metrics))
    for one in ended:
        if one.value is not None and one.verdict is None:
            so_far = one.value if so_far is None else best(so_far, one.value)
        values = zip(metrics, (one.value, *one.further_values), strict=True)
        row = [one.name, *(_value_of(metric, value) for metric, value in values)]
        if item.pareto_front is None:
            row.append(_value_of(item.metric, so_far))
        else:
            row.append("yes" if one.arm in item.pareto_front else None)
        if item.pruner is not None:
            row.append(f"{one.round} (stopped)" if one.verdict else str(one.round))
        rows.append(row)
    head = f"study: {len(ended)} of {item.arms} trials have ended"
    last = "best so far" if item.pareto_front is None else "on the Pareto front"
    columns = (
        "trial",
        *map(presentation.metric_title, metrics),
        last,
        *(() if item.pruner is None else ("rounds",)),
    )
    return Group(Text(head), table(columns, rows))


def _value_of(metric: str, value: float | None) -> str | None:
    return None if value is None else presentation.metric_value(metric, value)


Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, metavar="N", help="New total number of rounds of each run.")
]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", metavar="SEED", help="Additional seed; may be repeated.")
]


def cancel(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Cancel an experiment at the next round boundary. Completed rounds are kept."""
    with connect() as client:
        show(client.cancel(experiment), _stopping, as_json=as_json)


def pause(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Pause an experiment at the next round boundary, until `fedq resume`."""
    with connect() as client:
        show(client.pause(experiment), _stopping, as_json=as_json)


def resume(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Resume a paused experiment from exactly where it stopped."""
    with connect() as client:
        show(client.resume(experiment), _one_line, as_json=as_json)


def retry(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Retry the failed and cancelled runs of an experiment from their last checkpoints."""
    with connect() as client:
        show(client.retry(experiment), _one_line, as_json=as_json)


def extend(
    experiment: ExperimentId, rounds: Rounds = None, seed: Seeds = None, as_json: AsJson = False
) -> None:
    """Add rounds or seeds to an experiment.

    Completed rounds are kept; runs continue from their checkpoints.
    """
    if rounds is None and not seed:
        raise typer.BadParameter(
            "give a new number of rounds or additional seeds", param_hint="--rounds, --seed"
        )
    with connect() as client:
        show(client.extend(experiment, rounds=rounds, seeds=seed), _one_line, as_json=as_json)


Confirmed = Annotated[
    int, typer.Option("--arms", min=2, metavar="N", help="Number of arms: those that lead.")
]
Named = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="NAME", help="Confirm this arm instead; may be repeated."),
]
Fresh = Annotated[int, typer.Option("--seeds", min=1, max=1_000, help="Number of new seeds.")]
Ranking = Annotated[str | None, typer.Option(help="Metric by which arms lead (default: the main one).")]


def confirm(
    experiment: ExperimentId,
    arms: Confirmed = 5,
    seeds: Fresh = 10,
    arm: Named = None,
    metric: Ranking = None,
    as_json: AsJson = False,
) -> None:
    """Submit the leading arms of an experiment again, with seeds that did not select them."""
    with connect() as client:
        try:
            made = client.confirm(experiment, arms=arm or arms, seeds=seeds, metric=metric)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        show(made, _one_line, as_json=as_json)


Edited = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|RUN",
        help="Experiment id, or run id with --notes.",
        autocompletion=connection.complete_experiments,
    ),
]
NewName = Annotated[str | None, typer.Option("--name", help="New name.")]
NewTags = Annotated[
    list[str] | None, typer.Option("--tag", help="New tag instead of the present ones; may be repeated.")
]
NewPriority = Annotated[
    int | None, typer.Option("--priority", min=0, max=9, help="New priority; higher runs first.")
]
NotesFile = Annotated[
    Path | None,
    typer.Option(
        "--notes", metavar="FILE", help="New notes: a Markdown file; - reads standard input, empty removes."
    ),
]
Star = Annotated[bool | None, typer.Option("--star/--unstar", help="Mark with a star, or remove it.")]
Archive = Annotated[
    bool | None,
    typer.Option("--archive/--unarchive", help="Leave out of lists, or take back; runs are not affected."),
]


def edit(
    id: Edited,
    name: NewName = None,
    tags: NewTags = None,
    priority: NewPriority = None,
    notes: NotesFile = None,
    starred: Star = None,
    archived: Archive = None,
    as_json: AsJson = False,
) -> None:
    """Change name, tags, priority, notes, star or archive of an experiment, or the notes of a run."""
    text = None
    if notes is not None:
        text = sys.stdin.read() if notes == STDIN else notes.read_text(encoding="utf-8")
    others = (name, tags, priority, starred, archived)
    if text is None and not any(given is not None for given in others):
        raise typer.BadParameter("give at least one field to change", param_hint="--name, --notes, ...")
    with connect() as client:
        if not id.startswith("run_"):
            changed = client.edit(
                id,
                name=name,
                tags=tags,
                priority=priority,
                notes=text,
                starred=starred,
                archived=archived,
            )
            show(changed, _one_line, as_json=as_json)
            return
        if text is None or any(given is not None for given in others):
            raise typer.BadParameter("of a run, only --notes can be changed", param_hint="EXPERIMENT|RUN")
        run = client.edit_run(id, notes=text)
    print_json(run) if as_json else echo(f"{run.id} {run.status}")


Readers = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="USER",
        help="User who may read it, and use an upload; may be repeated, replaces all readers.",
    ),
]
Writers = Annotated[
    list[str] | None,
    typer.Option(
        "--write",
        metavar="USER",
        help=(
            "User who may also edit, control and extend an experiment; may be repeated, replaces all writers."
        ),
    ),
]
Private = Annotated[bool, typer.Option("--private", help="Take all access of other users back.")]


Shared = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|DATASET|DIGEST",
        help=(
            "Experiment: its id, a unique beginning of it, its name, or @last. Data set: its id. Code bundle"
            " or weights: their digest, sha256:..."
        ),
        autocompletion=connection.complete_experiments,
    ),
]


def share(
    shared: Shared,
    read: Readers = None,
    write: Writers = None,
    private: Private = False,
    as_json: AsJson = False,
) -> None:
    """Give other users of the service access to an experiment, a data set, a code bundle or weights, and
    print who has access.
    """
    if private and (read or write):
        raise typer.BadParameter("cannot be combined with --read and --write", param_hint="--private")
    with connect() as client:
        if private:
            access = client.share(shared, read=[], write=[])
        elif read or write:
            access = client.share(shared, read=read or None, write=write or None)
        else:
            access = client.access(shared)
    show(access, views.access, as_json=as_json)


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Also delete a running experiment.")]


def delete(experiment: ExperimentId, yes: Yes = False, force: Force = False, as_json: AsJson = False) -> None:
    """Delete an experiment with its results and files, after confirmation.

    Refused while runs are running, unless --force is given.
    """
    with connect() as client:
        found = client.experiment(experiment)
        running = found.progress.runs.get(Status.RUNNING, 0)
        if running and not force:
            complain(
                f"{found.id} has {presentation.counted(running, 'running run')}: `fedq cancel"
                f" {found.id}` stops them, --force deletes them as they are"
            )
            raise typer.Exit(ExitCode.IMPOSSIBLE)
        if not yes:
            _confirm(found)
        client.delete(found.id)
    runs = presentation.counted(sum(found.progress.runs.values()), "run")
    tell(f"deleted {found.id} {found.name!r} with {runs}", as_json=as_json, deleted=found.id)


def _confirm(found: Experiment) -> None:
    """Ask on the terminal before a deletion; ends the command without one, or with another answer."""
    runs = ", ".join(f"{count} {status}" for status, count in found.progress.runs.items())
    stderr().print(
        f"{found.id} {found.name!r} of {found.owner}, submitted {found.created_at:{views.TIME}} UTC: runs:"
        f" {runs}; {presentation.counted(found.progress.rounds_done, 'round')} with their metrics, models and"
        " checkpoints"
    )
    if not sys.stdin.isatty():
        complain("nothing was deleted: without a terminal, confirm with --yes")
        raise typer.Exit(ExitCode.REFUSED)
    if not typer.confirm("Delete it? This cannot be undone.", err=True):
        complain("nothing was deleted")
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


def _one_line(experiment: Experiment) -> Text:
    return Text(f"{experiment.id} {experiment.status}")


def _stopping(experiment: Experiment) -> Text:
    running = experiment.progress.runs.get(Status.RUNNING, 0)
    return _one_line(experiment).append(
        f"; runs stopping at the next round boundary: {running}" if running else ""
    )
