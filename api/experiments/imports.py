"""Results files that another FedQ has written: checked, and turned into an experiment to create."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from api.bundles.service import bring
from api.experiments.service import CreatedAnswer, create_experiment
from api.http.dependencies import AppState
from api.http.documents import validate
from api.http.problems import InvalidDocumentError
from fedcore.measures import measure_named
from fedcore.platform.access import Principal
from fedcore.platform.provenance import ENGINE_CHOICE, MODEL_SHA256, describe_code
from fedcore.platform.status import Status
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.experiments import NewExperiment, RunOutcome
from fedcore.platform.store.lifecycle import IMPORTED
from fedcore.platform.store.reproductions import packages_in
from fedcore.platform.store.tables import Document as Row
from fedcore.simulation.report import COLUMNS
from fedcore.spec import ExperimentSpec
from fedcore.spec.code import CodeBundle
from fedcore.spec.digest import results_sha256
from fedcore.spec.experiment import package_kinds
from fedq.schemas import Flaw, ImportedRows, ImportedRun, ResultsFile

SPECIFICATION = "/experiment/specification"
"""Pointer to it in a results file."""
_KEY = "\u2192 import "
"""Prefix of idempotency keys of imports; keys of requests are ASCII and thus never equal one."""
CLOCKS = timedelta(days=1)
"""The most by which the clocks of the machines that computed and wrote an experiment may differ."""
ROUNDING = 1e-9
"""The most by which a value may be outside the range of its measure."""


def import_experiment(
    document: Any, principal: Principal, facts: AuditFacts, state: AppState
) -> CreatedAnswer:
    """Store the experiment in a results file, ended as it did there, and the code bundle in the file.

    Components of packages that are not installed have stand-ins, as those of bundles.

    Raises InvalidDocumentError or SpecificationError, and as `bring` for the code.
    """
    file = validate(ResultsFile, document)
    _check_digest(file, document)
    described = _described(file)
    if described.get("code") is not None:
        code = validate(CodeBundle, described["code"], f"{SPECIFICATION}/code")
        described["code"] = bring(file.code, code, principal, facts, state)
    elif file.code is not None:
        raise InvalidDocumentError.at("/code", "the specification names no code bundle")
    with package_kinds(described):
        return create_experiment(state.database, _new_import(file, described, principal), facts)


def _new_import(file: ResultsFile, described: dict[str, Any], principal: Principal) -> NewExperiment:
    """Return the experiment in a results file.

    No quotas apply to it: its runs took no time here. The digest of the file is its idempotency
    key.
    """
    spec = validate(ExperimentSpec, described, SPECIFICATION)
    flaws = list(_flaws(file, spec))
    if flaws:
        raise InvalidDocumentError(flaws[:100])
    return NewExperiment(
        spec,
        owner=principal.owner,
        may_use_all=principal.sees is None,
        idempotency_key=_KEY + file.digest,
        request_hash=file.digest,
        provenance=describe_code() | {IMPORTED: _origin(file)},
        outcomes=[_outcome(run) for run in file.runs],
    )


def _check_digest(file: ResultsFile, document: Any) -> None:
    found = results_sha256(document)
    if found != file.digest:
        raise InvalidDocumentError.at(
            "/digest",
            f"must match the content, {found}: the file is damaged or was modified; export it again",
        )


def _described(file: ResultsFile) -> dict[str, Any]:
    """Return the specification with the last name and tags of the experiment."""
    return file.experiment.specification | {"name": file.experiment.name, "tags": file.experiment.tags}


def _origin(file: ResultsFile) -> dict[str, Any]:
    origin = file.experiment.model_dump(mode="json", include={"created_at", "provenance"})
    return {
        "experiment_id": file.experiment.id,
        "digest": file.digest,
        "exported_at": file.exported_at.isoformat(),
        **origin,
    }


def _flaws(file: ResultsFile, spec: ExperimentSpec) -> Iterator[Flaw]:
    """Yield runs and rows that do not match the specification."""
    rounds = {arm.index: arm.spec.rounds for arm in spec.arms()}
    missing = {(arm, seed) for arm in rounds for seed in spec.seeds}
    for place, run in enumerate(file.runs):
        if (run.arm, run.seed) not in missing:
            detail = f"arm {run.arm} with seed {run.seed} is not in the specification, or is a duplicate"
            yield Flaw(pointer=f"/runs/{place}", detail=detail)
            continue
        missing.remove((run.arm, run.seed))
        yield from _flaws_of(run, rounds[run.arm], f"/runs/{place}")
        yield from _flaws_of_measures(run.rows, f"/runs/{place}/rows")
        yield from _flaws_of_times(file, run, f"/runs/{place}")
    if len({run.id for run in file.runs}) < len(file.runs):
        yield Flaw(pointer="/runs", detail="must have an id of its own each")
    if file.experiment.created_at > datetime.now(UTC) + CLOCKS:
        detail = f"{file.experiment.created_at.isoformat()} is in the future"
        yield Flaw(pointer="/experiment/created_at", detail=detail)
    if missing:
        yield Flaw(
            pointer="/runs",
            detail=f"must contain each arm with each seed; {len(missing)} are missing, e.g. {min(missing)}",
        )


def _flaws_of(run: ImportedRun, rounds: int, at: str) -> Iterator[Flaw]:
    columns = {name: getattr(run.rows, name) for name in ImportedRows.model_fields if name != "extra"}
    lengths = {len(values) for values in (*columns.values(), *run.rows.extra.values())}
    done = len(run.rows.seconds)
    if len(lengths) > 1 or done > rounds:
        yield Flaw(pointer=f"{at}/rows", detail=f"all lists must have the same length, at most {rounds}")
    if run.diverged_round not in (None, done):
        yield Flaw(
            pointer=f"{at}/diverged_round", detail=f"must be the last round, {done}, not {run.diverged_round}"
        )
    early = run.diverged_round is not None or run.stop_reason is not None
    if run.status is Status.SUCCEEDED and not early and done != rounds:
        yield Flaw(pointer=f"{at}/rows", detail=f"a succeeded run must have all {rounds} rounds, not {done}")
    if not isinstance(run.provenance.get(MODEL_SHA256, ""), str):
        yield Flaw(pointer=f"{at}/provenance/{MODEL_SHA256}", detail="must be a string")


def _flaws_of_measures(rows: ImportedRows, at: str) -> Iterator[Flaw]:
    """Yield values that their measures do not have."""
    for name in COLUMNS:
        yield from _flaws_of_values(name, getattr(rows, name), f"{at}/{name}")
    for name, values in rows.extra.items():
        if name in ImportedRows.model_fields:
            yield Flaw(pointer=f"{at}/extra/{name}", detail="is a list of its own in `rows`")
        yield from _flaws_of_values(name, values, f"{at}/extra/{name}")
    clock = [moment for moment in rows.extra.get("simulated_seconds", ()) if isinstance(moment, float | int)]
    if clock != sorted(clock) or min(clock, default=0) < 0:
        detail = "must not be negative, and not less than in a round before"
        yield Flaw(pointer=f"{at}/extra/simulated_seconds", detail=detail)


def _flaws_of_values(name: str, values: Sequence[Any], at: str) -> Iterator[Flaw]:
    """Yield the first value outside the range of the measure."""
    info = measure_named(name)
    if info is None:
        return
    for place, value in enumerate(values):
        numbers = [number for number in _numbers_in(value) if number is not None]
        if numbers and not info.least - ROUNDING <= min(numbers) <= max(numbers) <= info.most + ROUNDING:
            most = "" if info.most == inf else f" and at most {info.most:g}"
            yield Flaw(pointer=f"{at}/{place}", detail=f"must be at least {info.least:g}{most}, not {value}")
            return


def _numbers_in(value: Any) -> Iterator[float | None]:
    if isinstance(value, list):
        for entry in value:
            yield from _numbers_in(entry)
    else:
        yield value


def _flaws_of_times(file: ResultsFile, run: ImportedRun, at: str) -> Iterator[Flaw]:
    """Yield the first time that is in the future, or before the times of what it follows."""
    rows = ((f"{at}/rows/committed_at/{place}", moment) for place, moment in enumerate(run.rows.committed_at))
    ends = ((f"{at}/finished_at", run.finished_at), ("/exported_at", file.exported_at))
    latest, before, now = None, "", datetime.now(UTC)
    for pointer, moment in ((f"{at}/started_at", run.started_at), *rows, *ends):
        if moment is None:
            continue
        if moment > now + CLOCKS:
            yield Flaw(pointer=pointer, detail=f"{moment.isoformat()} is in the future")
            return
        if latest is not None and moment < latest - CLOCKS:
            detail = f"{moment.isoformat()} is before {before}, {latest.isoformat()}"
            yield Flaw(pointer=pointer, detail=detail)
            return
        if latest is None or moment > latest:
            latest, before = moment, pointer


def _outcome(run: ImportedRun) -> RunOutcome:
    derived = "provenance", "packages", "rows"
    facts = {name: getattr(run, name) for name in RunOutcome._fields if name not in derived}
    # Workers act on the choice of an engine, and take no instructions from a file.
    provenance = {name: value for name, value in run.provenance.items() if name != ENGINE_CHOICE} | {
        "imported_from": run.id
    }
    packages = packages_in(run.provenance)
    return RunOutcome(**facts, provenance=provenance, packages=packages, rows=_rows(run.rows))


def _rows(columns: ImportedRows) -> list[Row]:
    return [
        {
            "round": place + 1,
            **{name: getattr(columns, name)[place] for name in (*COLUMNS, "committed_at")},
            "extra": {
                name: values[place] for name, values in columns.extra.items() if values[place] is not None
            },
        }
        for place in range(len(columns.seconds))
    ]
