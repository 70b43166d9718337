"""`fedq submit`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedcore.spec import yaml_documents
from fedq.cli import completion, views
from fedq.cli.assignments import overrides
from fedq.cli.comparison import comparison
from fedq.cli.connection import connect
from fedq.cli.encodings import encode, encoding_of
from fedq.cli.following import conclude, follow
from fedq.cli.terminal import AsJson, print_json, show, stderr
from fedq.client import InvalidRequestError
from fedq.client.specification import Specification, parse

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
        help="Submit a preset, listed by `fedq presets`.",
        autocompletion=completion.presets,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field, e.g. --set rounds=20 --set local.lr=0.1; may be repeated.",
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the experiment is finished, then print its results.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Wait, and also write the results to this file: .json, .csv or .parquet."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without submitting.")]
Key = Annotated[
    str | None,
    typer.Option(
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
    dry_run: DryRun = False,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Submit an experiment and print its id, or with --wait its results."""
    specification, changes = _specification(spec, preset), overrides(assignments or [])
    encoding = None if output is None else encoding_of(output)
    with connect() as client, _placing(None if changes else spec):
        if dry_run:
            show(client.dry_run(specification, changes), views.plan, as_json=as_json)
            return
        experiment = client.submit(specification, changes, idempotency_key=idempotency_key)
        if not (wait or output):
            print_json(experiment) if as_json else typer.echo(experiment.id)
            return
        stderr().print(f"{experiment.id} {experiment.name}", markup=False)
        ended = follow(client, experiment.id)
        results = client.results(experiment.id)
    show(results, comparison, as_json=as_json)
    if output is not None and encoding is not None:
        output.write_bytes(encode(results, encoding))
    conclude(ended)


@contextmanager
def _placing(file: Path | None) -> Iterator[None]:
    """Add the lines of the file to the errors that the service finds in it."""
    try:
        yield
    except InvalidRequestError as error:
        if file is not None and file != STDIN:
            places = yaml_documents.locate(
                file.read_text(encoding="utf-8"), {flaw.pointer for flaw in error.flaws}
            )
            flaws = [flaw.model_copy(update=places[flaw.pointer]._asdict()) for flaw in error.flaws]
            error.problem = error.problem.model_copy(update={"errors": flaws})
        raise


def _specification(spec: Path | None, preset: str | None) -> Specification:
    match spec, preset:
        case None, str():
            return preset
        case Path(), None:
            return parse(sys.stdin.read(), "standard input") if spec == STDIN else spec
        case _:
            raise typer.BadParameter("give either a specification file or --preset NAME", param_hint="SPEC")
