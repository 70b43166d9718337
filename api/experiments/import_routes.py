"""`/v1/imports`: results that another FedQ has written to a file."""

from collections.abc import Iterator
from typing import Any

from fastapi import Response

from api.experiments.responses import experiment_answer
from api.experiments.service import code
from api.http.audit_trail import Note
from api.http.authentication import Submitter
from api.http.dependencies import Configuration, Store
from api.http.documents import Document, body_of, validate
from api.http.problems import InvalidDocumentError, responses
from api.http.routing import Router
from fedcore.platform.status import Status
from fedcore.platform.store import imports
from fedcore.platform.store.curves import COLUMNS
from fedcore.platform.store.reproductions import ENGINE_CHOICE, MODEL_SHA256
from fedcore.platform.store.tables import Document as Row
from fedcore.spec import ExperimentSpec
from fedcore.spec.digest import results_sha256
from fedcore.spec.limits import ExperimentLimits, refuse_excess
from fedq.schemas import Experiment, Flaw, ImportedRows, ImportedRun, ResultsFile

router = Router(prefix="/v1/imports", tags=["experiments"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Experiment, "description": "The file was already imported as this experiment."},
        201: {
            "headers": {"Location": {"description": "URL of the experiment.", "schema": {"type": "string"}}}
        },
        **responses(400, 413, 415, 422),
    },
    openapi_extra=body_of("ResultsFile"),
    summary="Import results",
)
def import_results(
    principal: Submitter,
    document: Document,
    database: Store,
    settings: Configuration,
    note: Note,
    response: Response,
) -> Experiment:
    """Import a file written by `fedq export --to fedq` as a finished experiment with all its
    results.

    It can be read, compared and drawn like any other experiment. It has no models and checkpoints,
    so `retry` and `extend` return 409. Importing the same file again returns the same experiment.
    """
    file = validate(ResultsFile, document.value)
    _check_digest(file, document.value)
    spec = validate(ExperimentSpec, _described(file), "/experiment/specification")
    refuse_excess(spec, ExperimentLimits(settings.max_runs, settings.max_rounds, settings.max_parameters))
    flaws = list(_flaws(file, spec))
    if flaws:
        raise InvalidDocumentError(flaws[:100])
    outcomes = [_outcome(run) for run in file.runs]
    with database.transaction() as session:
        provenance = code() | {imports.IMPORTED: _origin(file)}
        record, made = imports.create(
            session, spec, outcomes, owner=principal.owner, digest=file.digest, provenance=provenance
        )
        note(session, record.id)
        answer = experiment_answer(session, record)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"/v1/experiments/{record.id}"
    return answer


def _check_digest(file: ResultsFile, document: Any) -> None:
    found = results_sha256(document)
    if found != file.digest:
        raise InvalidDocumentError(
            [
                Flaw(
                    pointer="/digest",
                    detail=(
                        f"must match the content, {found}: the file is damaged or was modified; export it"
                        " again"
                    ),
                )
            ]
        )


def _described(file: ResultsFile) -> dict[str, Any]:
    """The specification, with the name and tags that the experiment had last."""
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
    """Where runs and rows are not those that the specification asks for."""
    rounds = {arm.index: arm.spec.rounds for arm in spec.arms()}
    missing = {(arm, seed) for arm in rounds for seed in spec.seeds}
    for place, run in enumerate(file.runs):
        if (run.arm, run.seed) not in missing:
            detail = f"arm {run.arm} with seed {run.seed} is not in the specification, or is a duplicate"
            yield Flaw(pointer=f"/runs/{place}", detail=detail)
            continue
        missing.remove((run.arm, run.seed))
        yield from _flaws_of(run, rounds[run.arm], f"/runs/{place}")
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


def _outcome(run: ImportedRun) -> imports.Outcome:
    facts = {
        name: getattr(run, name) for name in imports.Outcome._fields if name not in ("provenance", "rows")
    }
    # How the engine was chosen is for workers, which take nothing from strangers.
    provenance = {name: value for name, value in run.provenance.items() if name != ENGINE_CHOICE} | {
        "imported_from": run.id
    }
    return imports.Outcome(**facts, provenance=provenance, rows=_rows(run.rows))


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
