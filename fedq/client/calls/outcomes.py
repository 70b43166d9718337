"""Calls for results, figures, reports and models."""

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
    ) -> Results:
        """Return the results, partial for unfinished runs.

        `.to_pandas()` and `.to_polars()` convert them to data frames.

        `baseline` is an arm by name or index (default: the first), `metrics` selects metrics
        (default: all). Curves have at most `points` points including extremes (default: 2,000),
        over all rounds or between the two of `rounds`. A `target`, e.g. `test_accuracy:0.9`, adds
        the cost of reaching it.
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
        """Arms of any experiments side by side: experiments by their ids, with all of their arms,
        or arms as `ID:INDEX` or `ID:NAME`.

        `baseline` is the position of the baseline arm in the comparison; `metrics`, `points` and
        `rounds` as for `results`.
        """
        asked = given(arm=arms, baseline=baseline, metric=metrics, points=points, **_window(rounds))
        return await self._transport.read(ComparisonFrame, "/v1/compare", **asked)

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
        params = given(arm=arms, metric=metric, x=x, **look)
        return await self._transport.download(f"/v1/compare/figure.{_form(path)}", Path(path), **params)

    async def theory(self, id: str) -> Theory:
        """Return the closed-form prediction of each arm, or the reason why there is none."""
        return await self._transport.read(Theory, f"{EXPERIMENTS}/{id}/theory")

    async def metrics(self, id: str) -> Frame:
        """Return every round of every run of an experiment, one per row."""
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
        """Return a figure of the curves of a metric with their spread over seeds, as bytes that
        notebooks display.

        `csv` returns the plotted numbers. `theory` adds closed-form predictions. `arms` selects
        arms by name or index (default: all); each keeps its colour. The style is given as in
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
        """Write the figure to `path`, as SVG, PNG, PDF or CSV by its suffix, and return the
        path.
        """
        params = given(arm=arms, metric=metric, x=x, theory=theory or None, **look)
        return await self._transport.download(
            f"{EXPERIMENTS}/{id}/figure.{_form(path)}", Path(path), **params
        )

    async def save_report(self, id: str, path: str | Path) -> Path:
        """Write a self-contained report to `path`, as HTML or Markdown by its suffix, and return
        the path.
        """
        form = Path(path).suffix.lower().removeprefix(".")
        if form not in ("html", "md"):
            raise ValueError(f"the file name of a report must end in .html or .md, not {path}")
        return await self._transport.download(f"{EXPERIMENTS}/{id}/report.{form}", Path(path))

    async def model(self, run_id: str) -> bytes:
        """Return the final model of a run as safetensors."""
        return (await self._transport.request("GET", f"/v1/runs/{run_id}/model")).content

    async def save_model(self, run_id: str, path: str | Path) -> Path:
        """Write the final model to `path` and return the path."""
        return await self._transport.download(f"/v1/runs/{run_id}/model", Path(path))

    async def save_checkpoint(self, run_id: str, path: str | Path) -> Path:
        """Write the latest checkpoint of a run to `path` and return the path."""
        return await self._transport.download(f"/v1/runs/{run_id}/checkpoint", Path(path))


def _window(rounds: tuple[int, int] | None) -> dict[str, int]:
    return {} if rounds is None else {"from_round": rounds[0], "to_round": rounds[1]}


def _form(path: str | Path) -> str:
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in get_args(Form):
        raise ValueError(f"the file name of a figure must end in .svg, .png, .pdf or .csv, not {path}")
    return form
