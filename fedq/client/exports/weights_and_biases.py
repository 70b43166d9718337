"""Weights & Biases: offline runs in a folder, for `wandb sync`; nothing is sent.

Each run has the settings of its arm as configuration, and its measures by round.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

# Offline runs are sent nowhere, and neither are reports of errors; asked for before the first import.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from fedcore.platform.status import Status
from fedq import schemas
from fedq.client.exports.sinks import arms, parameters, scalars

FACTS = ("arm", "arm_name", "status", "diverged_round", "stop_reason", "error", "worker")
"""Fields of a run that become entries of its summary, as `fedq.NAME`."""


class WandbRuns:
    """Folders `wandb/offline-run-*-RUN`; see Sink."""

    def __init__(self, experiment: schemas.Experiment, folder: Path, _tracking_uri: str | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._experiment, self._folder, self.where = experiment, folder, str(folder)
        self._arms = arms(experiment)

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Write a run and delete the one of an earlier export."""
        for earlier in (self._folder / "wandb").glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(earlier)
        with wandb.init(
            mode="offline",
            dir=self._folder,
            project=self._experiment.name,
            group=self._experiment.id,
            tags=[tag for tag in self._experiment.tags if len(tag) <= LONGEST_TAG],
            id=run.id,
            name=f"{run.arm_name}, seed {run.seed}",
            config=parameters(self._arms[run.arm], run.seed),
            # Nothing of this machine belongs to runs that others have computed.
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                x_start_time=(run.started_at or run.created_at).timestamp(),
            ),
        ) as written:
            for row in rows:
                written.log({**scalars(row), "_timestamp": row.committed_at.timestamp()}, step=row.round)
            facts = {name: getattr(run, name) for name in FACTS if getattr(run, name) is not None}
            written.summary.update({f"fedq.{name}": _plain(value) for name, value in facts.items()})

    def close(self, _results: schemas.Results, _arms: Sequence[schemas.ArmRow]) -> None:
        """End the process that writes the files."""
        wandb.teardown()


LONGEST_TAG = 64
"""Characters; wandb refuses longer ones."""


def _plain(value: object) -> object:
    return value.value if isinstance(value, Status) else value
