"""Experiments, taken to other tools."""

import tempfile
from pathlib import Path

from api.client.calls.outcomes import OutcomeCalls
from api.client.exports import Form, Sink, open_sink
from api.schemas import Run


class ExportCalls(OutcomeCalls):
    """Writes what came out where other tools read it."""

    async def export(
        self, id: str, to: Form, output: str | Path | None = None, *, tracking_uri: str | None = None, models: bool = False
    ) -> str:
        """Write every round of every run for another tool, into the folder `output`, absent `ID-FORM` here; returns where it is.

        `csv` and `parquet`: the files `rounds` and `summary`. `tensorboard`: event files, a folder for each run. `mlflow`: a tracking
        store, `mlflow.db` in the folder unless `tracking_uri` names another; with `models`, final models are its artifacts.

        It may be done at any time; done again, it brings up to date what is there. The last two need `pip install 'fedq[export]'`, parquet
        `fedq[frames]`: MissingPackageError without. Raises ExportError where a tracking store does not take it. AsyncClient writes while
        others wait.
        """
        if (tracking_uri is not None or models) and to != "mlflow":
            raise ValueError(f"tracking_uri and models belong to mlflow, not to {to}")
        experiment = await self.experiment(id)
        sink = open_sink(to, experiment, Path(output or f"{id}-{to}"), tracking_uri)
        with tempfile.TemporaryDirectory() as folder:
            for run in await self.runs(id):
                await self._export(sink, run, Path(folder) if models else None)
        sink.close(await self.results(id))
        return sink.where

    async def _export(self, sink: Sink, run: Run, folder: Path | None) -> None:
        rows = [row async for row in self.rounds(run.id)]
        wanted = folder is not None and run.has_model
        model = await self.save_model(run.id, folder / f"{run.id}.safetensors") if folder and wanted else None
        sink.add(run, rows, model)
        if model is not None:
            model.unlink()
