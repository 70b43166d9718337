"""`fedq reproduce`."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedq.cli.connection import connect
from fedq.cli.failures import ExitCode
from fedq.cli.following import follow
from fedq.cli.terminal import AsJson, ExperimentId, show, stderr
from fedq.cli.views import ABSENT, table
from fedq.schemas import Reproduction, ReproductionOutcome, RunDifference

CODES = {
    ReproductionOutcome.IDENTICAL: ExitCode.DONE,
    ReproductionOutcome.DIFFERENT: ExitCode.UNSUCCESSFUL,
    ReproductionOutcome.PENDING: ExitCode.IMPOSSIBLE,
}
SHOWN = 10
"""Number of runs whose differences are printed."""

Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Only compare EXPERIMENT, which is already a reproduction, with its original."
    ),
]


def reproduce(experiment: ExperimentId, check: Check = False, as_json: AsJson = False) -> None:
    """Run a succeeded experiment again and compare the results bit by bit.

    Exit code 1 if they differ.
    """
    with connect() as client:
        if not check:
            repetition = client.reproduce(experiment)
            stderr().print(f"{repetition.id} reproduces {experiment}", markup=False)
            experiment = follow(client, repetition.id).id
        found = client.reproduction(experiment)
    show(found, _told, as_json=as_json)
    raise typer.Exit(CODES[found.outcome])


def _told(found: Reproduction) -> RenderableType:
    compared = f"{found.runs} runs, {found.rounds:,} rounds and {found.models} final models compared"
    unmatched = f", {found.unmatched} runs have no counterpart in the original" if found.unmatched else ""
    items: list[RenderableType] = [
        Text(f"{found.experiment_id} reproduces {found.reproduces}: {found.outcome} ({compared}{unmatched})")
    ]
    if found.differing:
        rows = (
            (
                one.arm_name,
                one.seed,
                one.round,
                one.measure,
                _value(one.original),
                _value(one.here),
                _relative(one),
            )
            for one in found.differing[:SHOWN]
        )
        columns = ("arm", "seed", "round", "measure", "original", "here", "relative")
        title = f"first difference of each run, {min(SHOWN, len(found.differing))} of {len(found.differing)}"
        items.append(table(columns, rows, title=title))
    if found.made_otherwise:
        others = ((one.what, one.original, one.here, one.runs) for one in found.made_otherwise)
        title = (
            "changed since"
            if found.outcome is ReproductionOutcome.IDENTICAL
            else "changed since, and so a likely cause"
        )
        items.append(table(("property", "original", "here", "runs"), others, title=title))
    return Group(*items)


def _value(value: float | str | None) -> str:
    return ABSENT if value is None else str(value)


def _relative(difference: RunDifference) -> str:
    return ABSENT if difference.relative is None else f"{difference.relative:.1e}"
