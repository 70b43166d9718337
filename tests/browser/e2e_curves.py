"""Curves in a browser: watched while they grow, read and switched by the keyboard, laid side by
side.
"""

import re
import struct
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor
from playwright.sync_api import Page, Response, Route, expect

from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import QUADRATIC, SYNTHETIC, merged

GROWING = merged(SYNTHETIC, {"name": "curves that grow", "rounds": 1_000_000, "seeds": [0, 1]})
LATE = merged(SYNTHETIC, {"name": "first seen late", "rounds": 1_000_000, "evaluation": {"every": 500_000}})
EXACT = merged(
    QUADRATIC,
    {
        "name": "Quadratics with unequal work",
        "rounds": 60,
        "seeds": [0, 1, 2],
        "evaluation": {"record_parameters": False},
        "sweep": {"algorithm.kind": ["fedavg", "fednova", "fedlin", "scaffold"]},
    },
)
DIVERGING = merged(
    {name: part for name, part in QUADRATIC.items() if name != "systems"},
    {
        "name": "Two step sizes that are too large",
        "rounds": 20,
        "seeds": [0],
        "local": {"steps": 2},
        "evaluation": {"record_parameters": False},
        "sweep": {"local.lr": [0.05, 0.1, 5_000.0, 1_000_000.0]},
    },
)
"""Of two good arms, one that ends at 1e307, and one that diverges."""
AXES = (Path(__file__).parent / "axes_properties.js").read_text()
"""Function of numbers and pairs of them, whose result are properties that axes lack."""


def filled(page: Page) -> None:
    """Wait until the results are there."""
    ready(page)
    expect(page.locator("table.results tbody tr").first).to_be_visible()


def test_curves_grow_while_they_are_watched_and_arms_and_axes_are_changed_by_the_keyboard(
    opened: Opened, stack: Stack
) -> None:
    id = stack.client.submit(GROWING).id
    page = opened(f"/experiments/{id}")
    filled(page)
    first = page.locator(".arms li").first
    expect(first.locator(".value")).not_to_be_empty()
    before = first.locator(".value").inner_text()
    changes: list[Response] = []

    def keep_change(answer: Response) -> None:
        if "since=" in answer.url:
            changes.append(answer)

    page.on("response", keep_change)
    expect(first.locator(".value")).not_to_have_text(before)
    assert all(answer.headers["content-encoding"] == "gzip" for answer in changes)
    # Of what has changed, no more is read than the rounds that are new: none, if something else has changed.
    arms = [arm for answer in changes for arm in answer.json()["arms"]]
    read = [(arm["curves"]["test_accuracy"]["rounds"], arm["curves_from"]) for arm in arms]
    assert any(rounds for rounds, _ in read)
    assert all(start > 1 and min(rounds, default=start) >= start for rounds, start in read)
    compared = opened(f"/compare?arm={id}")
    with compared.expect_response(re.compile(r"/v1/compare\?.*since=")) as grown:
        filled(compared)
    assert grown.value.json()["arms"][0]["curves_from"] > 1
    # What is left needs no rounds, which would take the browser a core.
    stack.client.cancel(id)
    stack.client.wait(id)
    expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("over round, 1 of 1 arms"))
    first.get_by_role("checkbox").focus()
    page.keyboard.press("Space")
    expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("0 of 1 arms"))
    expect(first.locator(".value")).to_be_empty()
    page.keyboard.press("Space")
    page.get_by_label("Horizontal axis").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("over megabytes sent"))
    page.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".spoken")).to_contain_text("Megabytes sent")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_enabled()
    page.keyboard.press("0")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_disabled()


def test_a_part_that_is_zoomed_into_is_drawn_with_what_the_whole_leaves_out(
    opened: Opened, stack: Stack
) -> None:
    id = stack.client.submit(GROWING | {"rounds": 2_000, "seeds": [0]}).id
    stack.client.wait(id)
    page = opened(f"/experiments/{id}")
    filled(page)
    plot, back = page.locator(".plot"), page.get_by_role("button", name="Reset zoom")
    box = plot.bounding_box()
    assert box is not None
    # Beside the drawing are the axis (72 px) and a margin (16 px).
    left, right = (box["x"] + 72 + share * (box["width"] - 88) for share in (0.5, 0.6))
    middle = box["y"] + 0.5 * box["height"]
    page.mouse.move(left, middle)
    expect(plot.locator(".tip")).to_contain_text(re.compile(r"Round (99|100)\d"))
    page.mouse.down()
    page.mouse.move(right, middle + 2, steps=4)
    with page.expect_response(re.compile("from_round=")) as finer:
        page.mouse.up()
    expect(back).to_be_enabled()
    (curve,) = (curve for arm in finer.value.json()["arms"] for curve in arm["curves"].values())
    # All rounds of a tenth of the whole, of which it showed every second.
    assert 190 < len(curve["rounds"]) < 210
    assert curve["rounds"] == list(range(curve["rounds"][0], curve["rounds"][-1] + 1))
    page.reload()
    filled(page)
    expect(back).to_be_enabled()
    plot.dblclick()
    expect(back).to_be_disabled()
    assert "zoom" not in page.url


def choose_view(page: Page) -> None:
    """Draw two metrics of three arms over logarithmic axes, smoothed; the address says so."""
    page.get_by_label("horizontal", exact=True).check()
    page.get_by_label("Smoothing").fill("3")
    page.locator("summary", has_text="More metrics").click()
    page.get_by_role("group", name="More metrics").get_by_label("distance").check()
    expect(page.locator(".plot")).to_have_count(2)
    page.locator("summary", has_text="More metrics").click()
    page.locator(".arms li", has_text="scaffold").get_by_role("checkbox").uncheck()
    page.evaluate("scrollTo(0, 0)")
    view = {"metric=suboptimality&metric=distance", "log=xy", "smooth=3", "theory=yes", "hide=3"}
    assert all(part in page.url for part in view), page.url


def hold_view(page: Page) -> None:
    """Fail unless the page shows what `choose_view` chose."""
    filled(page)
    for name in ("suboptimality", "distance"):
        plot = page.locator(f".plot[aria-label^={name}]")
        expect(plot).to_have_attribute("aria-label", re.compile("3 of 4 arms"))
    expect(page.locator(".laws li")).to_have_count(4)
    box = page.locator(".plot").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    expect(page.locator(".plot .tip li")).to_have_count(3)


def test_theory_is_laid_over_and_arms_of_experiments_are_compared(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    half = {"name": "The same with half the step size", "local": {"lr": 0.025}}
    ids = [stack.client.submit(merged(EXACT, change)).id for change in ({}, half)]
    for id in ids:
        stack.client.wait(id)
    page = opened(f"/experiments/{ids[0]}")
    filled(page)
    page.get_by_label("Theory").check()
    expect(page.locator(".laws li")).to_have_count(4)
    page.get_by_text("Curves as a table").click()
    expect(page.locator("details table tbody tr")).to_have_count(48)
    hold_accessible(page)
    choose_view(page)
    page.goto("/")
    page.go_back()
    hold_view(page)
    shoot(page, "curves")
    hold_accessible(page)
    page.get_by_role("button", name="All").click()
    page.goto(f"/experiments/{ids[0]}?theory=yes")
    filled(page)
    expect(page.locator(".laws li")).to_have_count(4)
    page.get_by_label("Target").fill("0.3")
    page.keyboard.press("Tab")
    expect(page.locator("table.results thead")).to_contain_text("Rounds to target")
    expect(page.locator("table.results thead")).to_contain_text(
        "Rounds to target \N{MINUS SIGN} best other [95 % CI]"
    )
    shoot(page, "results", whole=True)
    page.goto("/")
    for name in (EXACT["name"], half["name"]):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.get_by_role("button", name="Compare selected").click()
    filled(page)
    expect(page.locator("table.results tbody tr")).to_have_count(8)
    hold_accessible(page)
    shoot(page, "compare", whole=True)
    narrow = opened(f"/compare?arm={ids[0]}:0&arm={ids[1]}:0", viewport=PHONE, color_scheme="dark")
    filled(narrow)
    hold_narrow(narrow)
    hold_accessible(narrow)
    shoot(narrow, "compare-phone-dark", whole=True)


def numbers(count: int) -> list[float]:
    """Finite numbers of all sizes, the ends of float64 among them."""
    draw = Random(0)
    drawn = (struct.unpack("<d", draw.randbytes(8))[0] for _ in range(count))
    ends = [0.0, 5e-324, 1e-323, 1e-308, 1.0, 1.5, 100.0, 1e293, 1e298, 1e307, 1.7976931348623157e308]
    return [value for value in (*ends, *(-end for end in ends), *drawn) if np.isfinite(value)]


def test_axes_have_a_place_for_every_finite_number(opened: Opened, stack: Stack) -> None:
    page = opened(f"/experiments/{diverged(stack)}")
    filled(page)
    some = numbers(400)
    pairs = [[one, other] for one in numbers(0) for other in numbers(0)]
    pairs += [list(pair) for pair in zip(some, reversed(some), strict=True)]
    assert page.evaluate(AXES, [some, pairs]) == []


def diverged(stack: Stack) -> str:
    """The id of the experiment DIVERGING, once it has ended."""
    return stack.client.wait(stack.client.submit(DIVERGING, idempotency_key="diverging").id).id


def colours_drawn(page: Page) -> list[int]:
    """Pixels of the first chart that have the colour of each arm in the list of arms."""
    plot = page.locator(".plot").first
    plot.locator("canvas").wait_for()
    picture = np.asarray(Image.open(BytesIO(plot.screenshot(animations="disabled"))).convert("RGB"), int)
    strokes = page.locator(".arms li line").evaluate_all(
        "all => all.map((one) => one.getAttribute('stroke'))"
    )
    return [int((np.abs(picture - ImageColor.getrgb(stroke)).max(axis=2) < 12).sum()) for stroke in strokes]


@pytest.mark.parametrize("log", ["y", "xy", "none"])
def test_arms_that_diverge_are_drawn_beside_those_that_do_not(opened: Opened, stack: Stack, log: str) -> None:
    id = diverged(stack)
    arms = stack.client.results(id).arms
    assert [arm.diverged for arm in arms] == [0, 0, 0, 1]
    assert 1e306 < arms[2].curves["suboptimality"].mean[-1] < 1e308
    for place in (f"/experiments/{id}?log={log}", f"/compare?arm={id}&log={log}"):
        page = opened(place)
        filled(page)
        expect(page.locator("table.results tbody tr")).to_have_count(4)
        expect(page.locator("table.results tbody tr").nth(2)).to_contain_text("8.86e306")
        expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("4 of 4 arms"))
        expect(page.locator("#notices .notice")).to_have_count(0)
        # On a linear axis the good arms lie on each other.
        assert min(colours_drawn(page)[2 if log == "none" else 0 :]) > 50
        page.locator(".plot").focus()
        page.keyboard.press("+")
        page.keyboard.press("End")
        expect(page.locator(".plot .tip li")).to_have_count(4)


LARGEST = 1.7976931348623157e308
ODD = {
    "y": [[1.0] * 10 + [0.0] * 10, [-LARGEST] * 10 + [LARGEST] * 10, [5e-324] * 20, [1e150] * 20],
    "none": [[0.0] * 10 + [-LARGEST] * 10, [LARGEST] * 20, [1e307] * 20, [-1e308] * 20],
}
"""Curves of four arms over 20 rounds, of which none lies on another."""


@pytest.mark.parametrize("log", ODD)
@pytest.mark.parametrize("metric", ["suboptimality", "client_accuracy_std"])
def test_zero_negative_and_the_largest_numbers_are_drawn(
    opened: Opened, stack: Stack, log: str, metric: str
) -> None:
    def exaggerate(route: Route) -> None:
        answer = route.fetch()
        results = answer.json()
        rounds = list(range(1, 21))
        curve = {
            "rounds": rounds,
            "megabytes": rounds,
            "simulated_seconds": [None] * 20,
            "epsilon": [None] * 20,
            "std": [1e308] * 20,
            "low": [-1e308] * 20,
            "high": [1e308] * 20,
            "n": [3] * 20,
        }
        for arm, values in zip(results["arms"], ODD[log], strict=True):
            arm["curves"] = {metric: curve | {"mean": values}}
        route.fulfill(response=answer, json=results)

    page = opened("/")
    page.route(re.compile(r"/results\?"), exaggerate)
    page.route(re.compile(r"/experiments/exp_\w+\?"), lambda route: rename(route, metric))
    page.goto(f"/experiments/{diverged(stack)}?metric={metric}&log={log}")
    filled(page)
    assert min(colours_drawn(page)) > 50


def rename(route: Route, metric: str) -> None:
    """Answer with the page of an experiment that has `metric` in place of another."""
    answer = route.fetch()
    route.fulfill(
        response=answer, body=answer.text().replace("&#34;suboptimality&#34;", f"&#34;{metric}&#34;")
    )


def test_the_table_is_filled_where_no_chart_can_be_drawn(opened: Opened, stack: Stack) -> None:
    id = diverged(stack)
    page = opened("/")
    page.route("**/echarts.esm.min.js", lambda route: route.abort())
    page.goto(f"/experiments/{id}")
    filled(page)
    expect(page.locator("table.results tbody tr")).to_have_count(4)
    expect(page.locator(".arms li .value").first).not_to_be_empty()
    expect(page.locator(".plot .flaw")).to_contain_text("The chart cannot be drawn")


def test_where_nothing_is_drawn_it_says_why(opened: Opened, stack: Stack) -> None:
    id = stack.client.submit(LATE).id
    page = opened(f"/experiments/{id}")
    nothing = page.locator(".nothing")
    expect(nothing).to_have_text("No test accuracy yet: the first evaluation is after round 500000.")
    expect(page.locator(".plot")).to_be_hidden()
    page.goto(f"/experiments/{id}?find=fedprox")
    expect(nothing).to_have_text("No arm is called “fedprox”.")
    page.goto(f"/experiments/{id}?hide=0")
    expect(nothing).to_have_text("All arms are hidden. Select some in the list of arms.")
    hold_accessible(page)
    stack.client.cancel(id)
    stack.client.wait(id)
    page.goto(f"/experiments/{id}")
    expect(nothing).to_have_text("The selected arms have no test accuracy.")
    page.goto(f"/compare?arm={id}")
    expect(nothing).to_have_text("The selected arms have no test accuracy.")
    stack.client.delete(id)


def test_arms_are_beside_the_best_of_the_others_or_a_baseline_by_any_figure(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    """Table, verdicts and words say the same, which are those of the service."""
    changes = {
        "name": "three rates",
        "rounds": 12,
        "seeds": [0, 1, 2, 3],
        "sweep": {"local.lr": [0.01, 0.1, 0.3]},
    }
    id = stack.client.submit(merged(SYNTHETIC, changes)).id
    stack.client.wait(id)
    page = opened(f"/experiments/{id}")
    filled(page)
    head, words = page.locator("table.results thead"), page.locator(".conclusion")
    metric = page.get_by_label("Metric").first.input_value()

    def says(**asked: Any) -> str:
        found = stack.client.results(id, metrics=[metric], **asked).best_arms
        assert found is not None
        return found.says

    expect(head).to_contain_text("Final \N{MINUS SIGN} best other [95 % CI]")
    expect(words).to_have_text(says())
    page.get_by_label("Compare by").select_option("area")
    expect(head).to_contain_text("Mean over rounds \N{MINUS SIGN} best other [95 % CI]")
    expect(words).to_have_text(says(by="area"))
    page.get_by_label("Compare with").select_option(label="lr=0.01")
    expect(head).to_contain_text("Mean over rounds \N{MINUS SIGN} baseline [95 % CI]")
    expect(words).to_have_text(says(by="area", baseline=0))
    expect(page.locator("table.results tbody tr").first).to_contain_text("(baseline)")
    expect(page.locator("table.results td.verdict").first).to_have_text("baseline")
    shoot(page, "beside-a-baseline", whole=True)
    stack.client.delete(id)
