"""Calls for exports and imports."""

import tempfile
from pathlib import Path
from typing import Any

from fedq.client.calls.base import JSON
from fedq.client.calls.outcomes import OutcomeCalls
from fedq.client.exports import Form, Sink, archive, open_sink
from fedq.client.models import Experiment
from fedq.client.uploads import TIMEOUT_S
from fedq.schemas import Run


class ExportCalls(OutcomeCalls):
    """Export experiments to other tools and import results files."""

    async def export(
        self,
        id: str,
        to: Form,
        output: str | Path | None = None,
        *,
        tracking_uri: str | None = None,
        models: bool = False,
    ) -> str:
        """Export every round of every run to the folder `output` (default: `./ID-FORM`) and return
        its path.

        `fedq`: a single file (default: `ID.fedq.json.gz`) for `import_`, of a finished experiment,
        without models. `csv` and `parquet`: the files `rounds` and `summary`. `tensorboard`: event
        files, one folder per run. `mlflow`: a tracking store, by default `mlflow.db` in the folder,
        or that of `tracking_uri`; with `models`, final models are stored as artifacts.

        Exporting again updates an existing export. The last two require
        `pip install 'fedq[export]'`, parquet `fedq[frames]`; otherwise MissingPackageError. Raises
        ExportError if a tracking store fails. AsyncClient blocks the event loop while it writes.
        """
        if (tracking_uri is not None or models) and to != "mlflow":
            raise ValueError(f"tracking_uri and models are options of mlflow, not of {to}")
        experiment = await self.experiment(id)
        sink = open_sink(
            to,
            experiment,
            Path(output or (f"{id}.fedq.json.gz" if to == "fedq" else f"{id}-{to}")),
            tracking_uri,
        )
        with tempfile.TemporaryDirectory() as folder:
            for run in await self.runs(id):
                await self._export(sink, run, Path(folder) if models else None)
        sink.close(await self.results(id))
        return sink.where

    async def import_(self, file: str | Path) -> Experiment:
        """Import a file that `export` to `fedq` wrote.

        Importing it again returns the same experiment.

        It can be read and compared like any other experiment, but not continued. Raises
        UnreadableDataError for an unreadable file.
        """
        content = archive.content_of(Path(file))
        options: dict[str, Any] = {
            "content": content,
            "headers": JSON,
            "timeout": TIMEOUT_S,
            "repeatable": True,
        }
        return await self._transport.send(Experiment, "POST", "/v1/imports", **options)

    async def _export(self, sink: Sink, run: Run, folder: Path | None) -> None:
        rows = [row async for row in self.rounds(run.id)]
        wanted = folder is not None and run.has_model
        model = await self.save_model(run.id, folder / f"{run.id}.safetensors") if folder and wanted else None
        sink.add(run, rows, model)
        if model is not None:
            model.unlink()
