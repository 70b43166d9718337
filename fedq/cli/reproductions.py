"""`fedq reproduce`: experiments, and figures and tables of papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedcore.errors import PresetNotFoundError
from fedq.cli import connection
from fedq.cli.connection import connect
from fedq.cli.lazy import clients, panels_of, presentation, presets, reports, schemas
from fedq.cli.terminal import (
    AsJson,
    ExitCode,
    complain,
    conclude,
    follow,
    follow_all,
    show,
    stderr,
)
from fedq.cli.views import ABSENT, table

if TYPE_CHECKING:
    from fedcore.presets import PresetSpec
    from fedq.client import Client
    from fedq.figures.drawing import Format
    from fedq.reproductions.sheets import Part, SheetReproduction
    from fedq.schemas import Claims, PresetSummary, Reproduction

CODES = {
    "identical": ExitCode.DONE,
    "different": ExitCode.UNSUCCESSFUL,
    "failed": ExitCode.UNSUCCESSFUL,
    "pending": ExitCode.IMPOSSIBLE,
}
SHOWN = 10
"""Number of runs whose differences are printed."""

FORMS: tuple[Format, ...] = ("svg", "png")
"""Formats of a figure."""
FOLDER = Path("reproductions")

Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT|FIGURE]",
        help=(
            "Figure or table of a paper, or a panel of one; or an experiment: its id, a unique beginning of"
            " it, its name, or @last (default: list the figures and tables)."
        ),
        autocompletion=connection.complete_experiments,
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Only compare EXPERIMENT, which is already a reproduction, with its original."
    ),
]
InSmall = Annotated[
    bool,
    typer.Option(
        "--small",
        help="Run a smaller version of FIGURE with the same ordering, in a minute or two on two cores.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help=f"Folder for the picture, the report and the numbers of FIGURE (default: {FOLDER}).",
    ),
]


def reproduce(
    subject: Subject = None,
    check: Check = False,
    small: InSmall = False,
    output: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Run a succeeded experiment again and compare the results bit by bit; or reproduce a figure or table
    of a paper: draw it, compare with the published numbers and check each claim.

    Exit code 1 if a run fails, or if the results of the experiment differ.
    """
    if subject is None:
        with connect() as client:
            show([preset for preset in client.presets() if _claimed(preset)], _sheets, as_json=as_json)
        return
    try:
        panels = _panels(subject, small=small)
    except PresetNotFoundError as error:
        if small or output:
            raise typer.BadParameter(str(error), param_hint="FIGURE") from error
        _reproduce_experiment(subject, str(error), check=check, as_json=as_json)
    else:
        if check:
            raise typer.BadParameter(f"requires an experiment, not {subject}", param_hint="--check")
        _reproduce_sheet(panels, output or FOLDER, as_json=as_json)


def _panels(name: str, *, small: bool) -> list[PresetSpec]:
    """Panels of a figure or table; raises PresetNotFoundError, also for a preset that is of no paper."""
    panels = presets.meant_by(name, small=small)
    if not _claimed(panels[0]):
        raise PresetNotFoundError(f"{name!r} is no figure or table of a paper; `fedq reproduce` lists them")
    return panels


def _reproduce_experiment(experiment: str, no_figure: str, *, check: bool, as_json: bool) -> None:
    """`no_figure` says that there is no figure of this name."""
    with connect() as client:
        try:
            original = client.experiment(experiment).id
        except clients.NotFoundError as error:
            complain(f"{error}, and {no_figure}")
            raise typer.Exit(ExitCode.IMPOSSIBLE) from error
        found = client.reproduction(original if check else _repeat(client, original))
    show(found, _comparison, as_json=as_json)
    raise typer.Exit(CODES[found.outcome])


def _repeat(client: Client, original: str) -> str:
    """Run an experiment again to its end; return the id of the repetition."""
    repetition = client.reproduce(original)
    stderr().print(f"{repetition.id} reproduces {original}")
    return follow(client, repetition.id).id


def _comparison(found: Reproduction) -> RenderableType:
    counted = presentation.counted
    compared = (
        f"{counted(found.runs, 'run')}, {counted(found.rounds, 'round')} and"
        f" {counted(found.models, 'final model')} compared"
    )
    unmatched = (
        f", {counted(found.unmatched, 'run')} without a counterpart in the original"
        if found.unmatched
        else ""
    )
    items: list[RenderableType] = [
        Text(f"{found.experiment_id} reproduces {found.reproduces}: {found.outcome} ({compared}{unmatched})")
    ]
    if found.error:
        items.append(Text(f"error: {found.error}", style="red"))
    if found.differing:
        rows = (
            (
                one.arm_name,
                one.seed,
                one.round,
                one.measure,
                one.original,
                one.here,
                None if one.relative is None else f"{one.relative:.1e}",
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
            if found.outcome is schemas.ReproductionOutcome.IDENTICAL
            else "changed since, and so a likely cause"
        )
        items.append(table(("property", "original", "here", "runs"), others, title=title))
    return Group(*items)


def _reproduce_sheet(panels: list[PresetSpec], output: Path, *, as_json: bool) -> None:
    with connect() as client:
        reproduction = panels_of.reproduce_sheet(client, panels, follow_all)
    written = _write(reproduction, output)
    show([part.claims for part in reproduction.parts], lambda _: _verdicts(reproduction), as_json=as_json)
    stderr().print(f"Written: {', '.join(map(str, written))}")
    conclude(*(part.experiment for part in reproduction.parts))


def _claimed(preset: PresetSummary | PresetSpec) -> bool:
    sheet = presets.sheets().get(preset.sheet)
    return sheet is not None and bool(sheet.claims or sheet.published)


def _sheets(listed: Sequence[PresetSummary]) -> RenderableType:
    """Table of the figures and tables, with their panels."""
    panels: dict[str, dict[str, None]] = {}
    for preset in listed:
        panels.setdefault(preset.sheet, {})[preset.panel] = None
    sheets = presets.sheets()
    rows = (
        (name, ", ".join(filter(None, own)) or ABSENT, sheets[name].title, sheets[name].source)
        for name, own in panels.items()
    )
    return table(("figure or table", "panels", "shows", "source"), rows)


def _write(reproduction: SheetReproduction, folder: Path) -> list[Path]:
    stem = reproduction.file_stem
    contents: dict[str, bytes] = {}
    if reproduction.sheet.figure is not None:
        # Drawing loads a large library, which the other commands do without.
        from fedq.reproductions.picture import draw

        contents |= {f"{stem}.{form}": draw(reproduction, form) for form in FORMS}
    picture = f"{stem}.svg" if reproduction.sheet.figure else None
    contents[f"{stem}.md"] = reports.report(reproduction, picture).encode()
    contents[f"{stem}.json"] = _json([part.claims for part in reproduction.parts]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def _json(claims: list[Claims]) -> str:
    return "[" + ",\n".join(one.model_dump_json(indent=2) for one in claims) + "]\n"


def _verdicts(reproduction: SheetReproduction) -> RenderableType:
    return Group(*(item for part in reproduction.parts for item in _part(part)))


def _part(part: Part) -> list[RenderableType]:
    rows = [
        (
            presentation.verdict(claim),
            f"{claim.says} ({claim.source})",
            "\n".join(presentation.grounds(claim)),
        )
        for claim in part.claims.claims
    ]
    items: list[RenderableType] = [table(("verdict", "claim", "result"), rows, title=part.preset.title)]
    for printed in part.claims.published:
        items += [
            Text(presentation.subject(printed)),
            table(
                ("arm", "published", "here"),
                [(row.arm, presentation.published(row), presentation.measured(row)) for row in printed.rows],
            ),
        ]
    return items
