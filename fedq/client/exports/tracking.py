"""MLflow: an MLflow experiment for each experiment and a run for each run, found again by tags.

Exporting again adds only new rounds.
"""

import os
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

# Nothing is to be sent anywhere but to the tracking store; asked for before the first import, which
# would begin with it.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, MAX_EXPERIMENT_TAG_VAL_LENGTH

from fedcore.platform.status import Status
from fedcore.spec.parameters import flatten_document
from fedq import schemas
from fedq.client.exports.sinks import (
    expand_arms,
    fitted_key,
    flatten_parameters,
    flatten_row,
    silence,
)

STATUSES = {
    Status.QUEUED: "SCHEDULED",
    Status.RUNNING: "RUNNING",
    Status.AT_RUNG: "SCHEDULED",
    Status.PAUSED: "SCHEDULED",
    Status.SUCCEEDED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.CANCELLED: "KILLED",
}
EXPERIMENT, RUN, ROUNDS = "fedq.experiment_id", "fedq.run_id", "fedq.rounds"
"""Tags: ids in FedQ, and the number of exported rounds."""
FACTS = ("arm", "arm_name", "seed", "status", "diverged_round", "stop_reason", "error", "worker")
"""Fields of a run that become tags; a long value is cut by MLflow."""
LONGEST_RUN_NAME = 250
"""Characters; a column of MLflow's database, which refuses longer ones on a server."""


class MlflowRuns:
    """Runs in a tracking store; see Sink.

    The default store is a SQLite file in the folder, with the models beside it.
    """

    def __init__(self, experiment: schemas.Experiment, folder: Path, tracking_uri: str | None) -> None:
        self.where = tracking_uri or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._arms = expand_arms(experiment)
        if tracking_uri is None:
            folder.mkdir(parents=True, exist_ok=True)
        with silence("mlflow"):
            self._client = MlflowClient(tracking_uri=self.where)
            self._experiment_id = self._find(
                experiment, None if tracking_uri else (folder.resolve() / "artifacts").as_uri()
            )

    @silence("mlflow")
    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], model: Path | None) -> None:
        """Add a run, or its new rounds."""
        there, done = self._run(run)
        given = [
            Param(mlflow_key(name), str(value))
            for name, value in flatten_parameters(self._arms[run.arm], run.seed).items()
        ]
        self._client.log_batch(there, params=given, tags=_tags(run))
        fresh = [row for row in rows if row.round > done]
        self._client.log_batch(there, metrics=[metric for row in fresh for metric in _metrics(row)])
        if model is not None:
            self._client.log_artifact(there, str(model), "model")
        # Said last: what breaks off before is sent again, and what is the same to the last digit is
        # kept once.
        self._client.set_tag(there, ROUNDS, str(max((row.round for row in rows), default=0)))
        if run.finished_at is None:
            self._client.update_run(there, status=STATUSES[run.status])
        else:
            self._client.set_terminated(there, STATUSES[run.status], _milliseconds(run.finished_at))

    def close(self) -> None:
        """Do nothing: each run is complete after `add`."""

    def _find(self, experiment: schemas.Experiment, artifacts: str | None) -> str:
        found = self._client.search_experiments(filter_string=f"tags.`{EXPERIMENT}` = '{experiment.id}'")
        said = {
            mlflow_key(f"fedq.{name}"): str(value)[:MAX_EXPERIMENT_TAG_VAL_LENGTH]
            for name, value in flatten_document(experiment.provenance)
        }
        tags = {
            EXPERIMENT: experiment.id,
            "fedq.name": experiment.name,
            "fedq.owner": experiment.owner,
            **said,
        }
        if not found:
            return str(
                self._client.create_experiment(f"{experiment.name} ({experiment.id})", artifacts, tags)
            )
        for name, value in tags.items():
            self._client.set_experiment_tag(found[0].experiment_id, name, value)
        return str(found[0].experiment_id)

    def _run(self, run: schemas.Run) -> tuple[str, int]:
        """Return the MLflow id of a run and the number of its exported rounds."""
        found = self._client.search_runs([self._experiment_id], f"tags.`{RUN}` = '{run.id}'")
        if found:
            return found[0].info.run_id, int(found[0].data.tags.get(ROUNDS, "0"))
        begun, suffix = _milliseconds(run.started_at or run.created_at), f", seed {run.seed}"
        name = run.arm_name[: LONGEST_RUN_NAME - len(suffix)] + suffix
        made = self._client.create_run(self._experiment_id, begun, {RUN: run.id}, name)
        return made.info.run_id, 0


def _tags(run: schemas.Run) -> list[RunTag]:
    facts = {name: getattr(run, name) for name in FACTS if getattr(run, name) is not None}
    said = dict(flatten_document({"provenance": run.provenance}))
    return [RunTag(mlflow_key(f"fedq.{name}"), str(value)) for name, value in {**facts, **said}.items()]


def mlflow_key(name: str) -> str:
    """The name of a parameter, tag or metric, which MLflow may take for a path: slashes stand alone,
    between words. A server on Windows refuses colons.
    """
    return fitted_key(name, r"[^/\w. -]|/(?!\w)|(?<!\w)/", MAX_ENTITY_KEY_LENGTH)


def _metrics(row: schemas.RoundRow) -> list[Metric]:
    at = _milliseconds(row.committed_at)
    return [Metric(mlflow_key(name), value, at, row.round) for name, value in flatten_row(row).items()]


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
