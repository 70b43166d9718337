"""`fedq validate` and `plan`: check and estimate specifications without a service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedcore.errors import PresetNotFoundError, SpecificationError
from fedcore.lazy import LazyModule
from fedq.cli import connection, views
from fedq.cli.experiments import STDIN, Assignments, SpecificationFile, overrides
from fedq.cli.terminal import AsJson, ExitCode, checking, print_json, show, stderr, stdout

if TYPE_CHECKING:
    import pydantic

    from fedcore import presets, settings
    from fedcore import spec as specs
    from fedcore.spec import ExperimentSpec, yaml_documents
    from fedq import schemas, validation_errors
    from fedq.local import rates
    from fedq.planning import data, estimates, seconds
    from fedq.schemas import Flaw
    from fedq.validation_errors import FileCheck
else:
    pydantic = LazyModule("pydantic")
    presets = LazyModule("fedcore.presets")
    settings = LazyModule("fedcore.settings")
    specs = LazyModule("fedcore.spec")
    yaml_documents = LazyModule("fedcore.spec.yaml_documents")
    schemas = LazyModule("fedq.schemas")
    validation_errors = LazyModule("fedq.validation_errors")
    data = LazyModule("fedq.planning.data")
    estimates = LazyModule("fedq.planning.estimates")
    seconds = LazyModule("fedq.planning.seconds")
    rates = LazyModule("fedq.local.rates")

Files = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC...", help="Specification files in JSON or YAML; - reads standard input."),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset", metavar="NAME", help="Plan a preset.", autocompletion=connection.complete_presets
    ),
]


def validate(files: Files, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Check specifications without a service and print each error with its position.

    Exit code 2 if there are errors.
    """
    changes = overrides(assignments or [])
    checks = [_check(file, changes)[0] for file in files]
    if as_json:
        print_json(checks)
    for check in () if as_json else checks:
        _tell(check)
    if not all(check.valid for check in checks):
        raise typer.Exit(ExitCode.REFUSED)


def plan(
    spec: SpecificationFile = None,
    preset: PresetName = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the cost of a specification without a service: arms, runs, work, memory, bytes, and
    the time on this machine, where `fedq run` has computed such runs before.

    `fedq submit --dry-run` also checks the limits, data sets and workers of a service.
    """
    found = checked_specification(spec, preset, overrides(assignments or []))
    configured = settings.settings()
    present = [data.roots_in(configured.datasets)]
    warnings = data.data_warnings(data.datasets_of(found), present, "this machine lacks")
    warnings += data.measure_warnings(found) + data.start_warnings(found)
    planned = estimates.plan(found).model_copy(update={"warnings": warnings})
    seen = rates.read_rates(configured.home)
    timed = seconds.add_seconds(planned, found, lambda kind: seen.get(kind, []), "on this machine")
    show(timed, views.plan, as_json=as_json)


def checked_specification(spec: Path | None, preset: str | None, changes: dict[str, Any]) -> ExperimentSpec:
    """Read and validate a specification or a preset; prints its errors, and ends the command with
    them.
    """
    match spec, preset:
        case Path(), None:
            check, found = _check(spec, changes)
        case None, str():
            with checking("--preset", PresetNotFoundError):
                document = presets.load(preset).spec
            check, found = _checked(preset, presets.override(document, changes), "")
        case _:
            raise typer.BadParameter("give either a specification file or --preset NAME", param_hint="SPEC")
    if found is None:
        _tell(check)
        raise typer.Exit(ExitCode.REFUSED)
    return found


def _check(file: Path, changes: dict[str, Any]) -> tuple[FileCheck, ExperimentSpec | None]:
    try:
        text = sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8")
        document = yaml_documents.load(text)
    except yaml_documents.YamlError as error:
        place = {} if error.place is None else error.place._asdict()
        return _refused(str(file), [schemas.Flaw(pointer="", detail=error.detail, **place)])
    except (OSError, UnicodeDecodeError) as error:
        return _refused(str(file), [schemas.Flaw(pointer="", detail=f"cannot read the file: {error}")])
    if not isinstance(document, dict):
        return _refused(
            str(file),
            [schemas.Flaw(pointer="", detail=f"must be a mapping, not {type(document).__name__}")],
        )
    return _checked(str(file), presets.override(document, changes), text)


def _checked(file: str, document: dict[str, Any], text: str) -> tuple[FileCheck, ExperimentSpec | None]:
    try:
        return validation_errors.FileCheck(
            file=file, valid=True, errors=[]
        ), specs.ExperimentSpec.model_validate(document)
    except pydantic.ValidationError as error:
        flaws = validation_errors.errors_of(error.errors(), specs.ExperimentSpec, document)
    except SpecificationError as error:
        flaws = [schemas.Flaw(pointer=error.pointer, detail=error.detail)]
    return _refused(file, validation_errors.located(flaws, text))


def _refused(file: str, flaws: list[Flaw]) -> tuple[FileCheck, None]:
    return validation_errors.FileCheck(file=file, valid=False, errors=flaws), None


def _tell(check: FileCheck) -> None:
    """Print one line per error in the format of compilers, which editors can parse."""
    if check.valid:
        stdout().print(f"{check.file}: valid")
    for flaw in check.errors:
        place = check.file if flaw.line is None else f"{check.file}:{flaw.line}:{flaw.column}"
        stderr().print(Text.assemble((place, "bold"), f": {flaw.pointer or '/'}: {flaw.detail}"))
