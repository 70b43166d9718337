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
from fedq.client.exports.sinks import expand_arms, fit_name, flatten_parameters, flatten_row

FACTS = ("arm", "arm_name", "status", "diverged_round", "stop_reason", "error", "worker")
"""Fields of a run that become entries of its summary, as `fedq.NAME`."""
LONGEST_NAME = 128
"""Characters of the name of a project or a run; W&B refuses longer ones."""
FORBIDDEN = r"[/\\#?%:]"
"""Characters that W&B refuses in the name of a project."""


class WandbRuns:
    """Folders `wandb/offline-run-*-RUN`; see Sink."""

    def __init__(self, experiment: schemas.Experiment, folder: Path, _tracking_uri: str | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._experiment, self._folder, self.where = experiment, folder, str(folder)
        self._arms = expand_arms(experiment)

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Write a run and delete the one of an earlier export."""
        suffix = f", seed {run.seed}"
        for earlier in (self._folder / "wandb").glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(earlier)
        with wandb.init(
            mode="offline",
            dir=self._folder,
            project=fit_name(self._experiment.name, FORBIDDEN, LONGEST_NAME),
            group=self._experiment.id,
            tags=self._experiment.tags,
            id=run.id,
            name=run.arm_name[: LONGEST_NAME - len(suffix)] + suffix,
            notes=f"{self._experiment.name}: {run.arm_name}{suffix}",
            config=flatten_parameters(self._arms[run.arm], run.seed),
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
                written.log({**flatten_row(row), "_timestamp": row.committed_at.timestamp()}, step=row.round)
            facts = {name: getattr(run, name) for name in FACTS if getattr(run, name) is not None}
            written.summary.update({f"fedq.{name}": _plain(value) for name, value in facts.items()})

    def close(self) -> None:
        """End the process that writes the files."""
        wandb.teardown()


def _plain(value: object) -> object:
    return value.value if isinstance(value, Status) else value
