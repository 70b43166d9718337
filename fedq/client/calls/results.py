"""Calls for results, figures, reports, models, exports and imports."""

import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, get_args

from fedcore.lazy import LazyModule
from fedq.client.bodies import UPLOAD_TIMEOUT_S
from fedq.client.calls.experiments import JSON, ExperimentCalls
from fedq.client.errors import ExportError, NotFoundError
from fedq.client.exports import files as archives
from fedq.client.exports.sinks import ExportForm, ModelForm, Sink, WhichModel, export_errors, open_sink
from fedq.client.transport import EXPERIMENTS, RUNS, drop_absent
from fedq.errors import MissingPackageError
from fedq.figures.style import Figure, FigureForm, FigureOptions, Horizontal
from fedq.results import tables
from fedq.results.confirmation import CONFIRMED_ARMS, CONFIRMING_SEEDS, confirming_specification
from fedq.results.frames import Frame
from fedq.results.presentation import ComparedFigure, RunFigure, figure_file
from fedq.results.tables import arms_of, rows_of
from fedq.schemas import ArmRow, Comparison, Experiment, Page, Results, Run, Theory

if TYPE_CHECKING:
    from fedq import model_export
else:
    model_export = LazyModule("fedq.model_export")

COMPARE = "/v1/compare"
ARMS_PAGE = 1_000
MEDIA_TYPES = {"csv": tables.CSV, "parquet": tables.PARQUET}
"""Media types of tables, which the service writes."""


class OutcomeCalls(ExperimentCalls):
    """Read results and download figures, reports and models."""

    async def results(
        self,
        id: str,
        *,
        baseline: str | int | None = None,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        rounds: tuple[int, int] | None = None,
        target: str | None = None,
        by: ComparedFigure | None = None,
    ) -> Results:
        """Return the results, partial for unfinished runs.

        `.to_pandas()` and `.to_polars()` convert them to data frames.

        `baseline` is an arm by name or index that the others are compared with (default: each with the
        best of the others), `metrics` selects metrics (default: all). Curves have at most `points` points
        including extremes (default: 2,000), over all rounds or between the two of `rounds`. A `target`,
        e.g. `test_accuracy:0.9`, adds the cost of reaching it. `by` is the figure that arms are compared
        by: `final`, `best`, `area`, or with a target `rounds` (then the default), `megabytes` or
        `simulated_seconds`.
        """
        params = drop_absent(
            baseline=baseline, metric=metrics, points=points, target=target, by=by, **_window(rounds)
        )
        return await self._transport.read(Results, (EXPERIMENTS, id, "results"), **params)

    async def confirm(
        self,
        id: str,
        *,
        arms: int | Sequence[str] = CONFIRMED_ARMS,
        seeds: int = CONFIRMING_SEEDS,
        metric: str | None = None,
        idempotency_key: str | None = None,
    ) -> Experiment:
        """Submit `arms` of an experiment again with `seeds` fresh seeds: its leading ones, by the final
        value of a `metric` (default: the main one), or those named.

        The results of the new experiment are not those that selected the arms, so they can be quoted.

        ValueError if fewer than two arms can be chosen.
        """
        found = await self.results(id, metrics=None if metric is None else [metric])
        document = confirming_specification((await self.experiment(id)).specification, found, arms, seeds)
        return await self.submit(document, idempotency_key=idempotency_key)

    async def compare(
        self,
        arms: Sequence[str],
        *,
        baseline: int | None = None,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        rounds: tuple[int, int] | None = None,
        by: RunFigure = "final",
    ) -> Comparison:
        """Arms of any experiments side by side: experiments by their ids, with all of their arms,
        or arms as `ID:INDEX` or `ID:NAME`.

        `baseline` is the position of an arm that the others are compared with; `metrics`, `points` and
        `rounds` as for `results`, and `by` a figure without a target.
        """
        asked = drop_absent(
            arm=arms, baseline=baseline, metric=metrics, points=points, by=by, **_window(rounds)
        )
        return await self._transport.read(Comparison, COMPARE, **asked)

    async def save_comparison_figure(
        self,
        arms: Sequence[str],
        path: str | Path,
        *,
        metric: str | None = None,
        x: Horizontal = "round",
        **look: Unpack[FigureOptions],
    ) -> Path:
        """Draw the compared curves to `path`, as SVG, PNG, PDF or CSV by its suffix, and return the
        path. Style as in `figure`.
        """
        params = drop_absent(arm=arms, metric=metric, x=x, **look)
        return await self._transport.download((COMPARE, f"figure.{_form(path)}"), Path(path), **params)

    async def theory(self, id: str) -> Theory:
        """Return the closed-form prediction of each arm, or the reason why there is none."""
        return await self._transport.read(Theory, (EXPERIMENTS, id, "theory"))

    async def arms(
        self,
        *,
        filter: str | None = None,  # noqa: A002 - its name in the service
        sort: str | None = None,
        fields: str | None = None,
        experiments: Sequence[str] | None = None,
        each_seed: bool = False,
        limit: int | None = None,
    ) -> Frame:
        """Return the arms of your experiments, or of some, with their settings and metrics: one per
        row, or one row for each of its runs with `each_seed`.

        `filter` is a condition such as `algorithm.kind = fedprox and local.lr < 0.1`, `sort` lists
        columns, `-` before descending ones: `-test_accuracy.best,local.lr`. `fields` lists the
        settings and metrics to return (default: all settings, and the headline metrics). `limit` is
        the maximum number of arms (default: all).
        """
        found = await self._arms(experiments, limit, filter=filter, sort=sort, fields=fields)
        return arms_of(found, each_seed=each_seed)

    async def metrics(self, id: str | Sequence[str]) -> Frame:
        """Return every round of every run of an experiment, or of several, one per row, with the
        settings of its arm.
        """
        wanted = [id] if isinstance(id, str) else id
        ids = [await self._id(EXPERIMENTS, one) for one in wanted]
        runs = [run for one in ids for run in await self.runs(one)]
        rows = [(run, [row async for row in self.rounds(run.id)]) for run in runs]
        return rows_of(rows, await self._arms(ids) if ids else [])

    async def save_metrics(self, id: str, path: str | Path) -> Path:
        """Write every round of every run of an experiment to `path`, as Parquet or CSV by its suffix,
        and return the path. One request, for experiments of any size.
        """
        accept = MEDIA_TYPES.get(Path(path).suffix.lower().removeprefix("."))
        if accept is None:
            raise ValueError(f"the file name of rounds must end in .csv or .parquet, not {path}")
        return await self._transport.download((EXPERIMENTS, id, "metrics"), Path(path), accept=accept)

    async def _arms(
        self, experiments: Sequence[str] | None, limit: int | None = None, **wanted: str | None
    ) -> list[ArmRow]:
        size = ARMS_PAGE if limit is None else min(limit, ARMS_PAGE)
        params = drop_absent(experiment=experiments, limit=size, **wanted)
        found: list[ArmRow] = []
        pages = self._transport.walk(Page[ArmRow], "/v1/arms", **params)
        async with aclosing(pages):
            async for arm in pages:
                found.append(arm)
                if len(found) == limit:
                    break
        return found

    async def figure(
        self,
        id: str,
        form: FigureForm = "svg",
        *,
        metric: str | None = None,
        x: Horizontal = "round",
        theory: bool = False,
        arms: Sequence[str | int] | None = None,
        **look: Unpack[FigureOptions],
    ) -> Figure:
        """Return a figure of the curves of a metric with their spread over seeds, as bytes that
        notebooks display.

        `csv` returns the plotted numbers. `theory` adds closed-form predictions. `arms` selects
        arms by name or index (default: all); each keeps its colour. The style is given as in
        `figure(id, "pdf", width="single", font="serif", markers=True, arms=[0, 2], ylim="0.5:1")`.
        """
        params = drop_absent(arm=arms, metric=metric, x=x, theory=theory or None, **look)
        picture = await self._transport.request("GET", (EXPERIMENTS, id, f"figure.{form}"), params=params)
        return Figure(picture.content)

    async def save_figure(
        self,
        id: str,
        path: str | Path,
        *,
        metric: str | None = None,
        x: Horizontal = "round",
        theory: bool = False,
        arms: Sequence[str | int] | None = None,
        **look: Unpack[FigureOptions],
    ) -> Path:
        """Write the figure to `path`, as SVG, PNG, PDF or CSV by its suffix, and return the
        path.
        """
        params = drop_absent(arm=arms, metric=metric, x=x, theory=theory or None, **look)
        return await self._transport.download(
            (EXPERIMENTS, id, f"figure.{_form(path)}"), Path(path), **params
        )

    async def save_report(self, id: str, path: str | Path) -> Path:
        """Write a report to `path`, as HTML or Markdown by its suffix, and return the path.

        HTML contains its figures. Those of Markdown are files beside it, `ID-METRIC.svg`.
        """
        path = Path(path)
        form = path.suffix.lower().removeprefix(".")
        if form not in ("html", "md"):
            raise ValueError(f"the file name of a report must end in .html or .md, not {path}")
        id = await self._id(EXPERIMENTS, id)
        if form == "md":
            found = await self.results(id)
            for metric in sorted({name for arm in found.arms for name in arm.curves}):
                figure = path.with_name(figure_file(id, metric))
                await self._transport.download((EXPERIMENTS, id, "figure.svg"), figure, metric=metric)
        return await self._transport.download((EXPERIMENTS, id, f"report.{form}"), path)

    async def model(self, run_id: str, *, which: WhichModel = "final") -> bytes:
        """Return the final model of a run as safetensors, or the model of its best evaluated round
        (`best`), which `best_model` of the run describes.
        """
        return (
            await self._transport.request("GET", (RUNS, run_id, "model"), params={"which": which})
        ).content

    async def save_model(self, run_id: str, path: str | Path, *, which: WhichModel = "final") -> Path:
        """Write the final model, or the `best`, to `path` and return the path."""
        return await self._transport.download((RUNS, run_id, "model"), Path(path), which=which)

    async def export_model(
        self,
        run_id: str,
        to: ModelForm,
        output: str | Path | None = None,
        *,
        which: WhichModel = "final",
        merge: bool = False,
        files: Sequence[str | Path] = (),
    ) -> Path:
        """Write a model for other tools and return the path: `onnx`, a file (default: `RUN.onnx`), or
        `huggingface`, a folder (default: `RUN`) for `from_pretrained` of transformers.

        With low-rank adapters the folder is one of peft, without the base network; `merge` adds them
        to its weights. `files` are the uploaded files of the pretrained network that the run used;
        others are looked for in FEDQ_DATA_DIR.

        The export is made here, with PyTorch: it requires `fedq[library]`, and `fedq[onnx]` or
        `fedq[transformers]`, otherwise MissingPackageError. Raises ExportError if the format cannot
        express the model. AsyncClient blocks the event loop while it writes.
        """
        run = await self.run(run_id)
        experiment = await self.experiment(run.experiment_id)
        content = await self.model(run.id, which=which)
        try:
            model = model_export.TrainedModel.of(experiment.specification, run.arm, run.seed, content)
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                f"to export a model needs {error.name}: pip install 'fedq[library]'"
            ) from error
        path = Path(output or model_export.file_name_of(run.id, to, which))
        return model_export.export_model(model, to, path, merge=merge, files=[Path(file) for file in files])

    async def save_checkpoint(self, run_id: str, path: str | Path) -> Path:
        """Write the latest checkpoint of a run to `path` and return the path."""
        return await self._transport.download((RUNS, run_id, "checkpoint"), Path(path))


def _window(rounds: tuple[int, int] | None) -> dict[str, int]:
    return {} if rounds is None else {"from_round": rounds[0], "to_round": rounds[1]}


def _form(path: str | Path) -> str:
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in get_args(FigureForm):
        raise ValueError(f"the file name of a figure must end in .svg, .png, .pdf or .csv, not {path}")
    return form


class ExportCalls(OutcomeCalls):
    """Export experiments to other tools and import results files."""

    async def export(
        self,
        id: str,
        to: ExportForm,
        output: str | Path | None = None,
        *,
        tracking_uri: str | None = None,
        models: bool = False,
        code: bool = True,
    ) -> str:
        """Export every round of every run to the folder `output` (default: `./ID-FORM`) and return
        its path.

        `fedq`: a single file (default: `ID.fedq.json.gz`) for `import_`, of a finished experiment,
        without models, but with its code bundle, unless `code` is false. `csv` and `parquet`: the
        files `rounds` and `summary`. `tensorboard`: event files, one folder per run. `mlflow`: a
        tracking store, by default `mlflow.db` in the folder, or that of `tracking_uri`; with `models`,
        final models are stored as artifacts. `wandb`: offline runs, for `wandb sync`. `optuna`: the
        trials of a study in `study.db`, which Optuna and its dashboard open.

        Exporting again updates an existing export. The last four require
        `pip install 'fedq[export]'`, parquet `fedq[frames]`; otherwise MissingPackageError. Raises
        ExportError, with the words of the tool, if it or the disk fails, if `optuna` is asked of an
        experiment without a study, or if the code bundle is not shared with you. AsyncClient blocks
        the event loop while it writes.
        """
        if (tracking_uri is not None or models) and to != "mlflow":
            raise ValueError(f"tracking_uri and models are options of mlflow, not of {to}")
        experiment = await self.experiment(id)
        id = experiment.id
        path = Path(output or (f"{id}.fedq.json.gz" if to == "fedq" else f"{id}-{to}"))
        if to in MEDIA_TYPES:
            await self._save_tables(id, to, path)
            return str(path)
        with tempfile.TemporaryDirectory() as folder, export_errors(to):
            if to == "fedq":
                archive = await self._code_of(experiment, Path(folder)) if code else None
                sink: Sink = archives.ArchiveRuns(experiment, path, archive)
            else:
                sink = open_sink(to, experiment, path, tracking_uri)
            for run in await self.runs(id):
                await self._export(sink, run, Path(folder) if models else None)
            sink.close()
        return sink.where

    async def _code_of(self, experiment: Experiment, folder: Path) -> bytes | None:
        """The archive of an experiment's code bundle, if it has one; raises ExportError."""
        used = experiment.specification.get("code")
        if used is None:
            return None
        try:
            file = await self.download_bundle(used["digest"], folder / "code.tar")
        except NotFoundError as error:
            raise ExportError(
                f"the code bundle {used['digest']} of {experiment.id} is not shared with you: ask its owner"
                " (`fedq share DIGEST --read NAME`), or export the experiment without it (`--without-code`,"
                " `code=False`), so that others can read it, but not run it again"
            ) from error
        return file.read_bytes()

    async def import_(self, file: str | Path, *, code: bool = True) -> Experiment:
        """Import a file that `export` to `fedq` wrote, or the folder of an experiment that `fedq run`
        has computed.

        Importing it again returns the same experiment.

        It can be read and compared like any other experiment, but not continued. The code bundle in the
        file, unless `code` is false, becomes one of yours, for which the key needs the scope `code`;
        `missing` of the answer says what is lacking to run the experiment again. Raises
        UnreadableDataError for an unreadable file.
        """
        return await self._transport.send(
            Experiment,
            "POST",
            "/v1/imports",
            content=archives.content_of(Path(file), code=code),
            headers=JSON,
            timeout=UPLOAD_TIMEOUT_S,
            repeatable=True,
        )

    async def _save_tables(self, id: str, to: ExportForm, folder: Path) -> None:
        arms = await self._arms([id])
        with export_errors(to):
            encoded = tables.encode_arms(arms, MEDIA_TYPES[to])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"arms.{to}").write_bytes(encoded)
            await self.save_metrics(id, folder / f"rounds.{to}")
            summary = folder / f"summary.{to}"
            await self._transport.download((EXPERIMENTS, id, "results"), summary, accept=MEDIA_TYPES[to])

    async def _export(self, sink: Sink, run: Run, folder: Path | None) -> None:
        rows = [row async for row in self.rounds(run.id)]
        wanted = folder is not None and run.has_model
        model = await self.save_model(run.id, folder / f"{run.id}.safetensors") if folder and wanted else None
        sink.add(run, rows, model)
        if model is not None:
            model.unlink()
