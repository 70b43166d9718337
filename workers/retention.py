"""Removal of old experiments (`FEDQ_RETENTION_DAYS`): results and files go to the archive, then the
experiment is deleted.

A process that is killed in between leaves both; the next attempt writes the same files again.
"""

import gzip
import socket
from collections.abc import Mapping, Sequence
from logging import ERROR
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import structlog

from fedcore.bundles import storage_key
from fedcore.errors import ResourceNotFoundError, StorageError
from fedcore.platform.provenance import model_digests, model_pieces
from fedcore.platform.storage import Storage
from fedcore.platform.storage import read as storage_read
from fedcore.platform.store import (
    UNAVAILABLE,
    Database,
    Session,
    audit,
    bundles,
    counters,
    curves,
    experiments,
    runs,
)
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedq.results.documents import EXPERIMENT, RUN, write_results
from fedq.schemas import RoundRow

ROUNDS_AT_ONCE = 10_000
PAUSE_S = 60.0
"""Seconds until experiments that could not be archived are tried again."""
RESULTS = "results.json.gz"

log = structlog.stdlib.get_logger(__name__)


def remove_expired(
    database: Database, storage: Storage, archive: Storage | None, days: float, ended: Event
) -> None:
    """Archive and delete the experiments that ended more than `days` ago, one after another, until
    `ended`.

    One that cannot be archived or deleted is kept, and the others go on; then waits PAUSE_S.
    """
    last, kept = "", False
    while not ended.is_set():
        with database.reading() as session:
            experiment = experiments.expired(session, days * 86_400, after=last)
        if experiment is None:
            break
        last = experiment.id
        try:
            _remove(database, storage, archive, experiment)
        except UNAVAILABLE:
            raise
        except Exception as error:
            kept = True
            # The message of a StorageError says all.
            trace = None if isinstance(error, StorageError) else error
            log.log(ERROR, "kept after its retention", experiment_id=last, error=str(error), exc_info=trace)
            with database.transaction() as session:
                counters.add(session, "retention", {counters.RETENTION_FAILURES: 1})
    if kept:
        ended.wait(PAUSE_S)


def _remove(
    database: Database, storage: Storage, archive: Storage | None, experiment: ExperimentRecord
) -> None:
    if archive is not None:
        write_archive(database, storage, archive, experiment)
    with database.transaction() as session:
        deleted = experiments.delete_expired(session, experiment)
        if deleted:
            facts = audit.AuditFacts("retention", 204, experiment.owner, "", socket.gethostname())
            audit.record(session, facts, experiment.id)
    if deleted:
        log.info("deleted after its retention", experiment_id=experiment.id, archived=archive is not None)


def write_archive(
    database: Database, storage: Storage, archive: Storage, experiment: ExperimentRecord
) -> None:
    """Copy all files of an experiment's runs to `archive`, into a folder with its id, and then its results
    as `fedq export` writes them.

    Raises StorageError.
    """
    with TemporaryDirectory(prefix="fedq-") as folder:
        with database.reading() as session:
            found = runs.of_experiment(session, experiment.id)
        # Before its rows are read, which takes longer: a store that is away fails here.
        for run in found:
            if run.fence:  # else no worker ever held it
                _copy_files(storage, archive, run, experiment.id, Path(folder, "copy"))
        code = _code_of(database, storage, experiment)
        file = Path(folder, RESULTS)
        assert experiment.finished_at is not None
        with database.reading() as session, gzip.open(file, "wb") as results:
            fields = {name: getattr(experiment, name) for name in EXPERIMENT if name != "specification"}
            fields["specification"] = experiment.spec
            contents = (({name: getattr(run, name) for name in RUN}, _rows(session, run)) for run in found)
            write_results(results, fields, contents, experiment.finished_at, code)
        # Last: where it is, the archive is complete.
        archive.put_file(f"{experiment.id}/{RESULTS}", file)


def _copy_files(storage: Storage, archive: Storage, run: RunRecord, folder: str, copy: Path) -> None:
    """Copy what is listed, so that no kind of file is left out; `copy` is a file on the way.

    Raises StorageError if a model of the run is missing or damaged, or the checkpoint of one without models
    is missing.
    """
    models = model_digests(run.model, run.provenance)
    needed = models if models or run.checkpoint is None else {run.checkpoint}
    for key in sorted({*storage.keys(run.id), *needed}):
        try:
            with copy.open("wb") as target:
                target.writelines(model_pieces(storage.open(key), key, models.get(key)))
        except ResourceNotFoundError as error:
            if key in needed:
                raise StorageError(
                    f"{error}; put it back, check FEDQ_STORAGE_URL, or delete the experiment by hand"
                ) from error
        else:
            archive.put_file(f"{folder}/{key}", copy)


def _code_of(database: Database, storage: Storage, experiment: ExperimentRecord) -> bytes | None:
    """The archive of the code bundle of an experiment, if its owner may read it."""
    if experiment.spec.get("code") is None:
        return None
    with database.reading() as session:
        found = bundles.find_if_any(session, experiment.spec["code"]["digest"], experiment.owner)
    return None if found is None else storage_read(storage, storage_key(found.id, found.digest))


def _rows(session: Session, run: RunRecord) -> Sequence[Mapping[str, Any]]:
    return [
        {name: getattr(row, name) for name in RoundRow.model_fields}
        for chunk in curves.in_chunks(session, run, ROUNDS_AT_ONCE)
        for row in chunk
    ]
