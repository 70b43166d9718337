"""`fedq check-extension` and `fedq new`: users' own components, without a service."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedq.cli.lazy import client as clients
from fedq.cli.lazy import configuration, testing
from fedq.cli.terminal import AsJson, ExitCode, show, tell
from fedq.cli.views import table
from fedq.scaffolding import EXPERIMENT, FAMILIES, create, create_experiment

Extension = Annotated[
    str, typer.Argument(metavar="EXTENSION", help="Folder, or name of an installed package.")
]
FamilyName = Annotated[
    str,
    typer.Argument(
        metavar="FAMILY",
        help=f"{EXPERIMENT}, or the family of a component: {', '.join(FAMILIES)}.",
        autocompletion=lambda: [EXPERIMENT, *FAMILIES],
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Kind of the component: lower-case letters, digits and _. Name of an experiment."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="Folder to create (default: the name; of an experiment: .)."
    ),
]


def check_extension(extension: Extension, as_json: AsJson = False) -> None:
    """Put the components of a folder or package through the checks that built-in ones pass.

    Exit code 1 if there are findings. Each names the line of your code, what was expected, what was
    found, and the usual cause.
    """
    # What the modules print is no part of the report.
    with contextlib.redirect_stdout(sys.stderr):
        report = testing.check_extension(extension, configuration.settings().datasets)
    show(report, _view, as_json=as_json)
    if not report.passed:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


def new(family: FamilyName, name: Name, folder: Folder = None, as_json: AsJson = False) -> None:
    """Create a package with a component of your own that passes its checks: pyproject.toml, a module,
    a test and a README. `fedq new experiment NAME` writes a specification that editors can check and
    complete.
    """
    if family == EXPERIMENT:
        file = create_experiment(name, folder or Path(), f"{clients.service_url().rstrip('/')}{SCHEMA}")
        tell(file, as_json=as_json, files=[str(file)])
        return
    place = folder or Path(name)
    made = create(family, name, place)
    text = "\n".join([*(f"created {file}" for file in made), f"check it with: fedq check-extension {place}"])
    tell(text, as_json=as_json, files=[str(file) for file in made])


SCHEMA = "/v1/schemas/experiment.json"
"""Path of the JSON Schema of specifications."""


def _view(report: testing.ExtensionReport) -> RenderableType:
    rows = (
        (f"{component.family}/{component.kind}", result.check, "failed" if result.finding else "passed")
        for component in report.components
        for result in component.results
    )
    return Group(table(("component", "check", "result"), rows), *_lines(report.findings))


def _lines(findings: Iterable[testing.Finding]) -> Iterable[Text]:
    """Findings in the format of compilers, which editors can parse."""
    return (
        Text.assemble((f"{finding.place}: ", "bold"), (finding.check, "red"), f": {finding.message}")
        for finding in findings
    )
