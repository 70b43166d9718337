"""Experiments, taken to other tools."""

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
    """Writes what came out where other tools read it."""

    async def export(
        self, id: str, to: Form, output: str | Path | None = None, *, tracking_uri: str | None = None, models: bool = False
    ) -> str:
        """Write every round of every run for another tool, into the folder `output`, absent `ID-FORM` here; returns where it is.

        `fedq`: one file, absent `ID.fedq.json.gz`, which `import_` takes into another FedQ; of an experiment that has ended, without its
        models. `csv` and `parquet`: the files `rounds` and `summary`. `tensorboard`: event files, a folder for each run. `mlflow`: a
        tracking store, `mlflow.db` in the folder unless `tracking_uri` names another; with `models`, final models are its artifacts.

        It may be done at any time; done again, it brings up to date what is there. The last two need `pip install 'fedq[export]'`, parquet
        `fedq[frames]`: MissingPackageError without. Raises ExportError where a tracking store does not take it. AsyncClient writes while
        others wait.
        """
        if (tracking_uri is not None or models) and to != "mlflow":
            raise ValueError(f"tracking_uri and models belong to mlflow, not to {to}")
        experiment = await self.experiment(id)
        sink = open_sink(to, experiment, Path(output or (f"{id}.fedq.json.gz" if to == "fedq" else f"{id}-{to}")), tracking_uri)
        with tempfile.TemporaryDirectory() as folder:
            for run in await self.runs(id):
                await self._export(sink, run, Path(folder) if models else None)
        sink.close(await self.results(id))
        return sink.where

    async def import_(self, file: str | Path) -> Experiment:
        """Take what `export` to `fedq` wrote, of this or another service; the same file twice is the same experiment.

        It has ended, is read and compared as any other, and never goes on here. Raises UnreadableDataError for a file that cannot be read.
        """
        content = archive.content_of(Path(file))
        options: dict[str, Any] = {"content": content, "headers": JSON, "timeout": TIMEOUT_S, "repeatable": True}
        return await self._transport.send(Experiment, "POST", "/v1/imports", **options)

    async def _export(self, sink: Sink, run: Run, folder: Path | None) -> None:
        rows = [row async for row in self.rounds(run.id)]
        wanted = folder is not None and run.has_model
        model = await self.save_model(run.id, folder / f"{run.id}.safetensors") if folder and wanted else None
        sink.add(run, rows, model)
        if model is not None:
            model.unlink()
