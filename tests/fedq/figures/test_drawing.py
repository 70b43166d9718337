"""Figures, taken apart: an SVG is a document whose curves can be measured, a PNG has pixels of
their colours.
"""

from collections.abc import Sequence
from io import BytesIO
from math import ulp
from sys import float_info
from xml.etree import ElementTree as ET

import httpx
import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import COLUMNS, RoundReport
from fedq.figures.drawing import COLOURS
from fedq.results.summaries import metric_names
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS

SVG = {"svg": "http://www.w3.org/2000/svg"}


@pytest.fixture
def place(http: httpx.Client, rows: Database) -> str:
    """Of two arms with three seeds, whose loss falls linearly."""
    made = submit_over_http(http, TWO_ARMS)
    end_runs(
        rows,
        lambda held: [
            report(round, train_loss=10.0 - round - held.arm + held.seed, test_accuracy=0.1 * round)
            for round in (1, 2, 3)
        ],
        6,
    )
    return f"/v1/experiments/{made['id']}/figure"


def _curves(picture: bytes) -> dict[str, np.ndarray]:
    """The points of the lines in an SVG that have a curve's colour, by colour."""
    paths = ET.fromstring(picture).iterfind(".//svg:path", SVG)
    styles = [(path.get("style", ""), path.get("d", "")) for path in paths]
    lines = {
        colour: [d for style, d in styles if f"stroke: {colour.lower()}" in style and d.count("L") == 2]
        for colour in COLOURS
    }
    return {colour: _points(found[0]) for colour, found in lines.items() if found}


def _points(path: str) -> np.ndarray:
    return np.array(
        [
            [float(x), float(y)]
            for x, y in (piece.split()[:2] for piece in path.replace("M", "L").split("L") if piece.strip())
        ]
    )


def _axes(picture: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The upper left and the lower right corner of the axes in an SVG."""
    (patch,) = ET.fromstring(picture).iterfind(".//svg:g[@id='axes_1']/svg:g[@id='patch_2']/svg:path", SVG)
    points = _points(patch.get("d", "").replace("z", ""))
    return points.min(axis=0), points.max(axis=0)


def test_an_svg_holds_one_curve_per_arm_with_the_points_of_its_mean(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.svg", params={"metric": "train_loss"})
    assert answer.headers["content-type"].startswith("image/svg+xml")
    curves = _curves(answer.content)
    assert list(curves) == list(COLOURS[:2])
    first, second = curves.values()
    # Equal steps right and down: the means are 10, 9, 8 and 9, 8, 7, and y counts downwards in an
    # SVG.
    assert np.diff(first, axis=0) == pytest.approx(np.diff(second, axis=0), abs=1e-3)
    assert np.diff(first, n=2, axis=0) == pytest.approx(np.zeros((1, 2)), abs=1e-3)
    assert first[1, 1] == pytest.approx(second[0, 1], abs=1e-3)
    assert first[1, 1] > first[0, 1]


def test_powers_of_ten_on_a_logarithmic_axis_are_drawn_as_formulas_not_as_their_source(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, TINY)
    end_runs(
        rows,
        lambda _: [report(round, extra={"suboptimality": 10.0 ** (3 - 3 * round)}) for round in (1, 2, 3)],
        1,
    )
    svg = http.get(f"/v1/experiments/{made['id']}/figure.svg", params={"metric": "suboptimality"}).text
    label = svg.partition(r"<!-- $\mathdefault{10^{-3}}$ -->")[2].partition("</g>")[0]
    assert label.count("<use ") == len("10-3")


def test_the_horizontal_axis_may_be_the_megabytes_sent(http: httpx.Client, place: str) -> None:
    svg = http.get(f"{place}.svg", params={"x": "bytes"}).text
    assert "<!-- megabytes sent -->" in svg
    assert "<!-- round -->" not in svg


def test_the_horizontal_axis_may_be_the_simulated_time(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, TWO_ARMS)
    history = {1: 1.0, 2: 2.0, 3: 9.0}
    end_runs(
        rows,
        lambda _: [
            report(round, train_loss=5.0 - round, extra={"simulated_seconds": history[round]})
            for round in history
        ],
        6,
    )
    answer = http.get(
        f"/v1/experiments/{made['id']}/figure.svg", params={"metric": "train_loss", "x": "time"}
    )
    assert "<!-- simulated seconds -->" in answer.text
    steps = np.diff(_curves(answer.content)[COLOURS[0]][:, 0])
    assert steps[1] == pytest.approx(7 * steps[0], rel=1e-3)


def test_without_a_clock_there_is_no_time_to_draw_over(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.svg", params={"x": "time"})
    assert answer.status_code == 404
    assert "has a simulated clock, which requires `systems.devices`" in answer.json()["detail"]


def assert_drawn(http: httpx.Client, rows: Database, metrics: Sequence[str]) -> None:
    made = submit_over_http(http)
    own = [metric for metric in metrics if metric in COLUMNS]
    end_runs(
        rows,
        lambda _: [
            report(
                round,
                **dict.fromkeys(own, 1 / round),
                extra={metric: 1 / round for metric in metrics if metric not in own},
            )
            for round in (1, 2, 3)
        ],
        1,
    )
    for metric in metrics:
        answer = http.get(f"/v1/experiments/{made['id']}/figure.svg", params={"metric": metric})
        assert answer.status_code == 200, metric
        assert len(_curves(answer.content)) == 1, metric


def test_measures_can_be_drawn(http: httpx.Client, rows: Database) -> None:
    assert_drawn(http, rows, metric_names()[::8])


@pytest.mark.nightly
def test_any_measure_can_be_drawn(http: httpx.Client, rows: Database) -> None:
    assert_drawn(http, rows, metric_names())


LARGEST, SMALLEST = float_info.max, ulp(0.0)
GOOD = [0.5, 0.25, 0.125]
EXTREME = {
    "near the largest number": [1e295, 1e306, 1e307],
    "to zero": [1e-3, 1e-6, 0.0],
    "from end to end": [-LARGEST, 0.0, LARGEST],
}
FURTHER = {
    "up to the largest number": [1.0, 1e308, LARGEST],
    "down to the smallest number": [1e-300, 1e-310, SMALLEST],
    "only zero": [0.0, 0.0, 0.0],
    "below zero": [-1.0, -1e307, -LARGEST],
}


def assert_in_order(svg: bytes, values: Sequence[float]) -> None:
    """Both arms are drawn within the axes, the larger value nowhere below the smaller."""
    curves, (low, high) = _curves(svg), _axes(svg)
    points = np.concatenate([curves[colour] for colour in COLOURS[:2]])
    assert (points >= low - 1e-3).all()
    assert (points <= high + 1e-3).all()
    order = np.argsort([*GOOD, *values], kind="stable")
    assert (np.diff(points[order, 1]) <= 1e-3).all()  # y counts downwards.


@pytest.mark.parametrize(
    "values",
    [
        *(pytest.param(values, id=name) for name, values in EXTREME.items()),
        *(pytest.param(values, id=name, marks=pytest.mark.nightly) for name, values in FURTHER.items()),
    ],
)
def test_any_finite_value_is_drawn_beside_those_of_another_arm(
    http: httpx.Client, rows: Database, values: list[float]
) -> None:
    id = submit_over_http(http, TWO_ARMS)["id"]
    end_runs(rows, lambda held: _extreme(held, values, "suboptimality"), 6)
    for log in ("none", "xy"):
        answer = http.get(f"/v1/experiments/{id}/figure.svg", params={"log": log})
        assert answer.status_code == 200, answer.text
        assert_in_order(answer.content, values)


def test_any_share_is_drawn_in_all_figures_and_reports(http: httpx.Client, rows: Database) -> None:
    id, values = submit_over_http(http, TWO_ARMS)["id"], [0.5, 1e308, LARGEST]
    end_runs(rows, lambda held: _extreme(held, values, "test_accuracy"), 6)
    for log in ("none", "y"):
        assert_in_order(http.get("/v1/compare/figure.svg", params={"arm": id, "log": log}).content, values)
    assert http.get(f"/v1/experiments/{id}/figure.png").content.startswith(b"\x89PNG")
    assert http.get(f"/v1/experiments/{id}/figure.pdf", params={"log": "y"}).content.startswith(b"%PDF")
    report = http.get(f"/v1/experiments/{id}/report.md").text
    assert "1.62e+310 ± 1.80e+309" in report
    assert "data:image/svg+xml;base64," in http.get(f"/v1/experiments/{id}/report.html").text


def _extreme(held: Claim, values: Sequence[float], metric: str) -> list[RoundReport]:
    """Rounds of a run: GOOD of the first arm, `values` of the second; a tenth less with each seed."""
    curve = GOOD if held.arm == 0 else values
    seeded = [value * (1 - 0.1 * held.seed) for value in curve]
    measures = [{metric: value} if metric in COLUMNS else {"extra": {metric: value}} for value in seeded]
    return [report(round, **measure) for round, measure in enumerate(measures, start=1)]


def test_a_single_value_is_a_point(http: httpx.Client, rows: Database) -> None:
    id = submit_over_http(http, {**TINY, "rounds": 1})["id"]
    end_runs(rows, lambda _: [report(1, train_loss=1e308)], 1)
    svg = http.get(f"/v1/experiments/{id}/figure.svg", params={"metric": "train_loss"}).content
    uses = ET.fromstring(svg).iterfind(".//svg:use", SVG)
    markers = [use for use in uses if COLOURS[0].lower() in use.get("style", "")]
    points = np.array([[float(marker.get("x", "")), float(marker.get("y", ""))] for marker in markers])
    low, high = _axes(svg)
    is_inside = ((low < points) & (points < high)).all(axis=1)
    assert is_inside.sum() == 2  # One is in the legend.


def test_the_arms_and_the_experiment_are_named(http: httpx.Client, place: str) -> None:
    svg = http.get(f"{place}.svg").text
    for text in ("two arms", "lr=0.1", "lr=0.05", "test accuracy in %"):
        assert f"<!-- {text} -->" in svg


def test_equal_results_make_equal_bytes(http: httpx.Client, place: str) -> None:
    assert http.get(f"{place}.svg").content == http.get(f"{place}.svg").content


def test_a_png_shows_the_curves_in_their_colours(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.png", params={"metric": "train_loss"})
    assert answer.headers["content-type"] == "image/png"
    pixels = image.imread(BytesIO(answer.content))[:, :, :3]
    assert pixels.shape[:2] == (675, 1200)
    for colour in COLOURS[:2]:
        assert (np.abs(pixels - to_rgb(colour)).max(axis=2) < 0.02).sum() > 100


def test_an_experiment_without_rows_has_an_empty_figure(http: httpx.Client) -> None:
    answer = http.get(f"/v1/experiments/{submit_over_http(http)['id']}/figure.svg")
    assert answer.status_code == 200
    assert _curves(answer.content) == {}


def test_a_name_with_dollar_signs_is_no_formula(http: httpx.Client) -> None:
    made = submit_over_http(http, {**TINY, "name": r"costs $\frac{1}$ <&>"})
    assert http.get(f"/v1/experiments/{made['id']}/figure.svg").status_code == 200


def test_a_metric_that_no_row_has_is_answered_with_those_that_there_are(
    http: httpx.Client, place: str
) -> None:
    answer = http.get(f"{place}.svg", params={"metric": "suboptimality"})
    assert answer.status_code == 404
    assert answer.json()["detail"].endswith("for suboptimality; available: test_accuracy, train_loss")


def test_a_metric_that_is_none_is_refused(http: httpx.Client, place: str) -> None:
    answer = http.get(f"{place}.svg", params={"metric": "accuracy"})
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == ["?metric"]


def test_another_format_is_refused(http: httpx.Client, place: str) -> None:
    assert http.get(f"{place}.gif").status_code in (404, 422)
