"""Figures fit for a paper: sizes, fonts, formats, chosen arms, axes, and the numbers behind
them.
"""

import gc
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO, StringIO
from typing import Any
from weakref import ref
from xml.etree import ElementTree as ET

import anyio
import httpx
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from api.results.pictures import DrawingGate
from fedcore.platform.store import Database
from fedcore.platform.store.database import POOLED
from fedcore.settings import Settings
from fedq.figures.drawing import COLOURS
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS
from tests.fedq.figures.test_drawing import SVG, _curves
from tests.support.asgi import application, calling
from tests.support.slow_gates import SlowGate

MM_PT = 72 / 25.4


@pytest.fixture
def place(http: httpx.Client, rows: Database) -> str:
    """Of two arms with three seeds, whose loss falls linearly."""
    made = submit_over_http(http, TWO_ARMS)
    end_runs(
        rows,
        lambda held: [
            report(round, train_loss=10.0 - round - held.arm, test_accuracy=0.1 * round)
            for round in (1, 2, 3)
        ],
        6,
    )
    return f"/v1/experiments/{made['id']}/figure"


def _size(http: httpx.Client, place: str, **params: object) -> tuple[float, float]:
    """Width and height in mm."""
    root = ET.fromstring(http.get(f"{place}.svg", params=params).content)  # type: ignore[arg-type]
    return tuple(float(root.attrib[side].removesuffix("pt")) / MM_PT for side in ("width", "height"))  # type: ignore[return-value]


SIZES: list[tuple[dict[str, object], tuple[float, float]]] = [
    ({}, (203.2, 114.3)),
    ({"width": "single"}, (89, 50.06)),
    ({"width": "double"}, (183, 102.9)),
    ({"width": "30"}, (30, 16.9)),
    ({"width": "120.5", "height": 80}, (120.5, 80)),
]


def test_figure_is_as_wide_as_a_papers_column(http: httpx.Client, place: str) -> None:
    for params, size in SIZES:
        assert _size(http, place, **params) == pytest.approx(size, abs=0.05), params


def test_a_png_has_the_resolution_that_is_asked_for(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.png", params={"width": "single", "dpi": 300})
    assert image.imread(BytesIO(answer.content)).shape[1] == round(89 / 25.4 * 300)


def test_a_pdf_embeds_its_fonts_as_publishers_want_them_and_is_the_same_every_time(
    http: httpx.Client, place: str
) -> None:
    one, other = (http.get(f"{place}.pdf", params={"font": "serif"}) for _ in range(2))
    assert one.headers["content-type"] == "application/pdf"
    assert one.content.startswith(b"%PDF")
    assert one.content == other.content
    assert b"STIXGeneral" in one.content
    assert b"/Subtype /Type3" not in one.content


def test_fonts_differ(http: httpx.Client, place: str) -> None:
    fonts = [
        set(re.findall(r"#([A-Za-z]+)-", http.get(f"{place}.svg", params={"font": font}).text))
        for font in ("sans", "serif")
    ]
    assert fonts == [{"DejaVuSans"}, {"STIXGeneral"}]


@pytest.mark.parametrize("arm", ["1", "lr=0.05"])
def test_a_chosen_arm_keeps_its_colour(http: httpx.Client, place: str, arm: str) -> None:
    curves = _curves(http.get(f"{place}.svg", params={"metric": "train_loss", "arm": arm}).content)
    assert list(curves) == [COLOURS[1]]


def test_lines_are_told_apart_by_markers(http: httpx.Client, place: str) -> None:
    plain, marked = (http.get(f"{place}.svg", params={"markers": markers}).text for markers in (False, True))
    for colour in COLOURS[:2]:
        uses = [
            sum(f"stroke: {colour.lower()}" in line for line in svg.splitlines() if "<use" in line)
            for svg in (plain, marked)
        ]
        assert uses[0] == 0
        assert uses[1] >= 3


def test_axes_are_logarithmic_and_end_where_asked(http: httpx.Client, place: str) -> None:
    curves = [
        _curves(http.get(f"{place}.svg", params={"metric": "train_loss", "arm": "0"} | params).content)[
            COLOURS[0]
        ]
        for params in ({"log": "x"}, {"xlim": "1:5"}, {})
    ]
    steps = [np.diff(curve[:, 0]) for curve in curves]
    assert steps[0][1] / steps[0][0] == pytest.approx(np.log(3 / 2) / np.log(2), rel=1e-3)
    assert (curves[1][2, 0] - curves[1][0, 0]) * 2 == pytest.approx(
        (curves[2][2, 0] - curves[2][0, 0]) / 1.1**-1, rel=0.05
    )


def test_rounds_are_whole_numbers(http: httpx.Client, place: str) -> None:
    svg = http.get(f"{place}.svg", params={"width": "double"}).text
    ticks = svg.partition('id="matplotlib.axis_1"')[2].partition('id="matplotlib.axis_2"')[0]
    assert re.findall(r"<!-- ([\d.]+) -->", ticks) == ["1", "2", "3"]


@pytest.mark.parametrize(("title", "told"), [("Ours", True), ("", False)])
def test_the_title_is_what_is_asked_for(http: httpx.Client, place: str, title: str, told: bool) -> None:
    svg = http.get(f"{place}.svg", params={"title": title}).text
    assert "<!-- two arms -->" not in svg
    assert ("<!-- Ours -->" in svg) == told


def test_the_numbers_are_a_link_away(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.svg", params={"metric": "train_loss", "arm": "lr=0.05", "width": "single"})
    found = re.fullmatch(r'<(.+)>; rel="describedby"; type="text/csv"', answer.headers["link"])
    assert found is not None
    (source,) = ET.fromstring(answer.content).iterfind(".//{http://purl.org/dc/elements/1.1/}source")
    assert source.text == found[1]
    numbers = http.get(found[1])
    assert numbers.headers["content-type"].startswith("text/csv")
    table = pd.read_csv(StringIO(numbers.text))
    assert table[["arm", "metric", "round", "n"]].to_numpy().tolist() == [
        [1, "train_loss", round, 3] for round in (1, 2, 3)
    ]
    assert table["mean"].tolist() == pytest.approx([8.0, 7.0, 6.0])


def test_a_comparison_is_drawn_the_same_way(http: httpx.Client, place: str) -> None:
    id = place.split("/")[3]
    answer = http.get(
        "/v1/compare/figure.svg",
        params={"arm": f"{id}:1", "width": "single", "title": "", "metric": "train_loss"},
    )
    assert float(ET.fromstring(answer.content).attrib["width"].removesuffix("pt")) == pytest.approx(
        89 * MM_PT, abs=0.1
    )
    assert "/v1/compare/figure.csv?" in answer.headers["link"]
    assert ET.fromstring(answer.content).find(".//svg:path", SVG) is not None


@pytest.mark.parametrize("path", ["experiments/{id}/figure.png", "compare/figure.png?arm={id}"])
def test_a_png_of_too_many_pixels_is_refused_with_a_resolution_that_is_drawn(
    http: httpx.Client, place: str, path: str
) -> None:
    asked = f"/v1/{path.format(id=place.split('/')[3])}"
    size: dict[str, str] = {"width": "500", "height": "500"}
    refused = http.get(str(httpx.URL(asked).copy_merge_params(size | {"dpi": "600"})))
    (flaw,) = refused.json()["errors"]
    assert (refused.status_code, flaw["pointer"]) == (422, "?dpi")
    found = re.search(r"at most (\d+) dpi", flaw["detail"])
    assert found is not None
    dpi = int(found[1])
    answers = [
        http.get(str(httpx.URL(asked).copy_merge_params(size | {"dpi": str(one)}))) for one in (dpi, dpi + 1)
    ]
    assert [answer.status_code for answer in answers] == [200, 422]


def test_vectors_of_any_size_and_resolution_are_drawn(http: httpx.Client, place: str) -> None:
    assert http.get(f"{place}.svg", params={"width": "500", "height": 500, "dpi": 600}).status_code == 200


WRONG: list[tuple[dict[str, str | int], str]] = [
    ({"width": "wide"}, "?width"),
    ({"width": "10"}, "?width"),
    ({"size": 30, "width": "single"}, "?size"),
    ({"xlim": "5"}, "?xlim"),
    ({"ylim": "2:1"}, "?ylim"),
    ({"ylim": "0:1", "log": "y"}, "?ylim"),
    ({"arm": "momentum"}, "?arm"),
    ({"font": "comic"}, "?font"),
    ({"dpi": 5}, "?dpi"),
    ({"log": "z"}, "?log"),
]


def test_figures_that_cannot_be_drawn_so_are_pointed_at(http: httpx.Client, place: str) -> None:
    for params, pointer in WRONG:
        answer = http.get(f"{place}.svg", params=params)
        assert answer.status_code == 422, params
        assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [pointer]


# Drawings delay no other request and leave no memory behind.

DRAWN = (
    "/v1/experiments/{id}/figure.png",
    "/v1/compare/figure.svg?arm={id}",
    "/v1/experiments/{id}/report.html",
)


@pytest.fixture
def id(http: httpx.Client, rows: Database) -> str:
    made = submit_over_http(http, TWO_ARMS)
    end_runs(rows, lambda held: [report(round, train_loss=10.0 - round - held.arm) for round in (1, 2, 3)], 6)
    return str(made["id"])


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class SlowDrawingGate(SlowGate, DrawingGate):
    """Drawings that take until they may go on."""


@pytest.mark.parametrize("path", DRAWN)
def test_drawings_that_wait_delay_no_other_request(settings: Settings, admin_key: str, path: str) -> None:
    gate = SlowDrawingGate()
    with (
        calling(application(settings, drawing_gate=gate), admin_key) as http,
        ThreadPoolExecutor(POOLED + 3) as clients,
    ):
        id = submit_over_http(http, TWO_ARMS)["id"]
        try:
            drawings = [clients.submit(http.get, path.format(id=id)) for _ in range(POOLED + 2)]
            assert gate.began.acquire(timeout=60)
            assert clients.submit(http.get, "/v1/me").result(timeout=60).status_code == 200
            assert not gate.began.acquire(blocking=False)
        finally:
            gate.go_on.set()
        assert {drawing.result().status_code for drawing in drawings} == {409}


@pytest.mark.parametrize("path", DRAWN)
@pytest.mark.usefixtures("collector_off")
def test_a_figure_is_freed_before_it_is_answered_without_the_cyclic_collector(
    http: httpx.Client, id: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ref[Any]] = []
    figure_class = matplotlib.figure.Figure

    def make(**options: Any) -> matplotlib.figure.Figure:
        figure = figure_class(**options)
        made.append(ref(figure))
        return figure

    monkeypatch.setattr(matplotlib.figure, "Figure", make)
    assert http.get(path.format(id=id)).status_code == 200
    assert made
    assert [figure() for figure in made] == [None] * len(made)


@pytest.mark.slow
def test_owners_take_turns() -> None:
    order: list[str] = []
    first_may_end = threading.Event()

    def draw(name: str) -> None:
        if name == "ann 0":
            first_may_end.wait()
        order.append(name)

    async def run() -> None:
        gate = DrawingGate()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(gate.run, "ann", lambda number=number: draw(f"ann {number}"))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(gate.run, "bob", lambda: draw("bob"))
            await anyio.wait_all_tasks_blocked()
            first_may_end.set()

    anyio.run(run)
    assert order == ["ann 0", "bob", "ann 1", "ann 2"]
