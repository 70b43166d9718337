"""TensorBoard event files: a folder `ARM/seed-SEED` for each run, with its measures by round, its
parameters and its specification.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from fedq import schemas
from fedq.client.exports.sinks import expand_arms, fit_name, flatten_parameters, flatten_row

SUFFIX = ".fedq"
"""File suffix that identifies earlier exports."""
LONGEST_NAME = 80


class TensorBoardRuns:
    """Folders of event files; see Sink. Values are 32-bit floats, as in TensorBoard."""

    def __init__(self, experiment: schemas.Experiment, folder: Path, _tracking_uri: str | None) -> None:
        self._folder, self.where = folder, str(folder)
        self._arms = expand_arms(experiment)

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Write the event file of a run and delete the one of an earlier export."""
        folder = self._folder / _folder_name(run) / f"seed-{run.seed}"
        earlier = list(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
        for file in earlier:
            file.unlink()
        with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
            self._describe(writer, run)
            for row in rows:
                for name, value in flatten_row(row).items():
                    writer.add_scalar(name, value, row.round, row.committed_at.timestamp())

    def close(self) -> None:
        """Do nothing: each run is complete after `add`."""

    def _describe(self, writer: SummaryWriter, run: schemas.Run) -> None:
        document = self._arms[run.arm]
        for summary in hparams(flatten_parameters(document, run.seed), {}):
            writer.file_writer.add_summary(summary)
        writer.add_text("specification", f"```json\n{json.dumps(document, indent=2)}\n```")
        writer.add_text("run", f"```json\n{run.model_dump_json(indent=2)}\n```")


def _folder_name(run: schemas.Run) -> str:
    """Index of the arm and the part of its name that is valid in a path."""
    return f"{run.arm}-{fit_name(run.arm_name, r'[^A-Za-z0-9.=_+-]+', LONGEST_NAME)}"
