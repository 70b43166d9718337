"""What came out of experiments: results, rows, figures, models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack, get_args

from fedq.client.calls.experiments import EXPERIMENTS, ExperimentCalls
from fedq.client.looks import FigureOptions
from fedq.client.models import Figure, Form
from fedq.client.results import ComparisonFrame, Frame, Results, rows_of
from fedq.client.transport import given
from fedq.schemas import Theory

Horizontal = Literal["round", "bytes", "time"]


class OutcomeCalls(ExperimentCalls):
    """Fetches what came out."""

    async def results(
        self,
        id: str,
        *,
        baseline: str | int | None = None,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        rounds: tuple[int, int] | None = None,
        target: str | None = None,
    ) -> Results:
        """What came out, as far as the runs are; `.to_pandas()` and `.to_polars()` make frames of it.

        Differences are to the arm `baseline`, by its name or index; absent, to the first. Only of these `metrics`, absent of all; curves
        of at most so many `points`, their extremes among them, absent 2,000, over all rounds or from the first to the second of `rounds`.
        With a `target`, as `test_accuracy:0.9`, also what it took each arm to get there.
        """
        params = given(baseline=baseline, metric=metrics, points=points, target=target, **_window(rounds))
        return await self._transport.read(Results, f"{EXPERIMENTS}/{id}/results", **params)

    async def compare(
        self,
        arms: Sequence[str],
        *,
        baseline: int = 0,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        rounds: tuple[int, int] | None = None,
    ) -> ComparisonFrame:
        """Arms of any experiments side by side: experiments by their ids, with all of their arms, or arms as `ID:INDEX` or `ID:NAME`.

        Differences are to the arm at place `baseline` of the comparison; `metrics`, `points` and `rounds` as for `results`.
        """
        asked = given(arm=arms, baseline=baseline, metric=metrics, points=points, **_window(rounds))
        return await self._transport.read(ComparisonFrame, "/v1/compare", **asked)

    async def save_comparison_figure(
        self, arms: Sequence[str], path: str | Path, *, metric: str | None = None, x: Horizontal = "round", **look: Unpack[FigureOptions]
    ) -> Path:
        """Write a picture of their curves to `path`, as SVG, PNG, PDF or CSV by its suffix; returns the path. Its looks as in `figure`."""
        params = given(arm=arms, metric=metric, x=x, **look)
        return await self._transport.download(f"/v1/compare/figure.{_form(path)}", Path(path), **params)

    async def theory(self, id: str) -> Theory:
        """What closed forms say of each arm: the law that applies with its curves, or why none does."""
        return await self._transport.read(Theory, f"{EXPERIMENTS}/{id}/theory")

    async def metrics(self, id: str) -> Frame:
        """Every round of every run of an experiment, one a line."""
        return rows_of([(run, [row async for row in self.rounds(run.id)]) for run in await self.runs(id)])

    async def figure(
        self,
        id: str,
        form: Form = "svg",
        *,
        metric: str | None = None,
        x: Horizontal = "round",
        theory: bool = False,
        arms: Sequence[str | int] | None = None,
        **look: Unpack[FigureOptions],
    ) -> Figure:
        """A picture of the curves of a metric, with their spread over the seeds; its bytes, which a notebook shows.

        As `csv`, the numbers that are drawn. With `theory`, what closed forms say of an arm is laid over. Only these `arms`, by name or
        index, absent all; each keeps its colour. What it looks like is said as in
        `figure(id, "pdf", width="single", font="serif", markers=True, arms=[0, 2], ylim="0.5:1")`.
        """
        params = given(arm=arms, metric=metric, x=x, theory=theory or None, **look)
        picture = await self._transport.request("GET", f"{EXPERIMENTS}/{id}/figure.{form}", params=params)
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
        """Write that picture to `path`, as SVG, PNG, PDF or CSV by its suffix; returns the path."""
        params = given(arm=arms, metric=metric, x=x, theory=theory or None, **look)
        return await self._transport.download(f"{EXPERIMENTS}/{id}/figure.{_form(path)}", Path(path), **params)

    async def save_report(self, id: str, path: str | Path) -> Path:
        """Write an experiment on one page that stands by itself to `path`, as HTML or Markdown by its suffix; returns the path."""
        form = Path(path).suffix.lower().removeprefix(".")
        if form not in ("html", "md"):
            raise ValueError(f"a report is .html or .md, not {path}")
        return await self._transport.download(f"{EXPERIMENTS}/{id}/report.{form}", Path(path))

    async def model(self, run_id: str) -> bytes:
        """The final model of a run, as safetensors."""
        return (await self._transport.request("GET", f"/v1/runs/{run_id}/model")).content

    async def save_model(self, run_id: str, path: str | Path) -> Path:
        """Write that model to `path`; returns the path."""
        return await self._transport.download(f"/v1/runs/{run_id}/model", Path(path))

    async def save_checkpoint(self, run_id: str, path: str | Path) -> Path:
        """Write the newest checkpoint of a run to `path`; returns the path."""
        return await self._transport.download(f"/v1/runs/{run_id}/checkpoint", Path(path))


def _window(rounds: tuple[int, int] | None) -> dict[str, int]:
    return {} if rounds is None else {"from_round": rounds[0], "to_round": rounds[1]}


def _form(path: str | Path) -> str:
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in get_args(Form):
        raise ValueError(f"a figure is .svg, .png, .pdf or .csv, not {path}")
    return form
