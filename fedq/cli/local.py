"""`fedq run`: an experiment without a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.bundles import pack
from fedcore.platform.status import Status
from fedq.cli.experiments import Assignments, Code, PresetName, SpecificationFile, overrides
from fedq.cli.lazy import configuration as settings
from fedq.cli.lazy import experiment, folder, presentation, presets, provenance, rates
from fedq.cli.planning import checked_specification
from fedq.cli.terminal import AsJson, ExitCode, checking, complain, show, stderr
from fedq.cli.views import comparison
from fedq.console import progress_bars

if TYPE_CHECKING:
    from fedcore.spec import ExperimentSpec

Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Folder of rounds and models; the same command continues there."
    ),
]
OfArray = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="K/N",
        help="Compute only part K of N, e.g. in a job array; all parts may share the folder.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes (default: one per core, or one per GPU if there are any)."),
]


def run(
    output: Output,
    spec: SpecificationFile = None,
    preset: PresetName = None,
    assignments: Assignments = None,
    part: OfArray = None,
    processes: Processes = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment on this machine without a service, and print its results.

    If it is interrupted or killed, the same command continues it, to the same bits. `fedq import
    DIR` loads the results into a service.
    """
    opened = prepared(output, spec, preset, assignments, code)
    share, began = _part(part, opened.spec), datetime.now(UTC)
    try:
        with _bar(as_json=as_json) as tell:
            local = experiment.LocalExperiment(opened, share, processes, code, tell)
            local.run()
        rates.add_rates(settings.settings().home, local.rates(began))
        show(experiment.results(opened), comparison, as_json=as_json)
        _conclude(local)
    except folder.FolderError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.IMPOSSIBLE) from error
    except experiment.ProcessesError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.UNSUCCESSFUL) from error
    except KeyboardInterrupt:
        complain("interrupted; the same command continues from here")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def prepared(
    output: Path, spec: Path | None, preset: str | None, assignments: list[str] | None, code: Path | None
) -> folder.ExperimentFolder:
    """Validate a specification and open its folder; ends the command with what is wrong."""
    changes = overrides(assignments or [])
    wanted = checked_specification(spec, preset, changes, code)
    made_with = provenance.describe_code()
    if preset is None:
        wanted = wanted.with_estimates()
    else:
        version = presets.load(preset).version
        made_with |= {"preset": preset, "preset_version": version, "overrides": changes}
    try:
        archive = None if code is None else pack(code)
        return folder.ExperimentFolder.open(output, wanted, made_with, archive)
    except folder.FolderError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.IMPOSSIBLE) from error


def _part(text: str | None, spec: ExperimentSpec) -> experiment.ArrayPart:
    if text is None:
        return experiment.WHOLE
    if spec.search is not None:
        raise typer.BadParameter(
            f"the search {spec.search.kind!r} compares all arms, which one process must run; leave it out",
            param_hint="--part",
        )
    with checking("--part"):
        return experiment.ArrayPart.parse(text)


@contextmanager
def _bar(*, as_json: bool) -> Iterator[Any]:
    """Yield a function that shows the progress: a bar on a terminal, else a line per finished run."""
    console = stderr()
    ended = 0
    with progress_bars(console, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task("rounds", total=None, note="")

        def tell(now: experiment.LocalProgress) -> None:
            nonlocal ended
            ended += len(now.ended)
            note = f"{ended} of {presentation.counted(now.runs, 'run')} finished"
            progress.update(task, completed=now.rounds_done, total=now.rounds_total, note=note)
            for one in () if console.is_terminal else now.ended:
                console.print(f"arm {one.arm}, seed {one.seed}: {one.status} ({note})", soft_wrap=True)

        yield tell


def _conclude(local: experiment.LocalExperiment) -> None:
    """Print which runs failed, and end the command with its exit code."""
    failed = [one for one in local.runs if one.status is Status.FAILED]
    for one in failed:
        complain(f"arm {one.arm}, seed {one.seed} failed: {one.error}")
    if failed:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)
