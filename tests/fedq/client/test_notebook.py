"""Displays in notebooks."""

from html.parser import HTMLParser

from fedcore.platform.status import Status
from fedq.client import Client, Experiment
from fedq.client.notebook import in_notebook
from fedq.schemas import StatusEvent
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.fedq.client.test_progress import _ended, _row, _run
from tests.support.service import Service


class Cells(HTMLParser):
    """The texts of HTML, and its bars; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.bars: list[float] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "progress":
            self.bars.append(float(dict(attrs)["value"] or ""))
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_progress_is_a_bar_per_run_that_changes_in_place() -> None:
    drawn: list[str] = []
    runs = [_run(0), _run(1)]
    with in_notebook(runs, drawn.append, breath_s=0) as tell:
        tell(_row(runs[0], 5, test_accuracy=0.8125))
        assert Cells(drawn[-1]).bars == [0.25, 0.5, 0.0]
        assert "test accuracy 81.25 %" in Cells(drawn[-1]).texts
        tell(StatusEvent(experiment_id="exp_1", run_id=None, status=Status.RUNNING, rounds_done=None))
        tell(_ended(runs[0], Status.SUCCEEDED, 5))
    assert Cells(drawn[-1]).bars == [0.3333, 1.0, 0.0]
    assert {"fedavg, seed 0", "5/5", "succeeded"} < set(Cells(drawn[-1]).texts)


def test_a_notebook_is_not_drawn_more_often_than_can_be_seen() -> None:
    drawn: list[str] = []
    with in_notebook([_run(0)], drawn.append, breath_s=1e6) as tell:
        for round in range(1, 11):
            tell(_row(_run(0), round))
    assert [Cells(html).bars for html in drawn] == [[0.0, 0.0], [1.0, 1.0]]


def test_experiments_results_and_figures_show_themselves(service: Service, client: Client) -> None:
    experiment = client.submit({**TWO_ARMS, "name": "<b>bold</b> & free"})
    assert isinstance(experiment, Experiment)
    carry_out(service.database, service.storage, 6)
    ended = Cells(client.experiment(experiment.id)._repr_html_())
    assert ended.bars == [1.0]
    assert {"<b>bold</b> & free", experiment.id, "runs: 6 succeeded"} < set(ended.texts)
    results = client.results(experiment.id)
    assert {"arm", "lr=0.1", "lr=0.05"} < set(Cells(results._repr_html_()).texts)
    assert f"{len(results.curves)} rows, showing the first 20" in Cells(results.curves._repr_html_()).texts
    svg, png = client.figure(experiment.id), client.figure(experiment.id, "png")
    assert ((svg._repr_svg_() or "").encode(), svg._repr_png_()) == (svg, None)
    assert (png._repr_svg_(), png._repr_png_()) == (None, png)


def test_results_show_themselves_before_there_are_any(client: Client) -> None:
    assert "fedavg" in Cells(client.results(client.submit(TINY).id)._repr_html_()).texts
