"""The page of one run: its log and its resource use, while it runs and afterwards."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import DIGITS, SYNTHETIC, merged


def test_the_log_and_the_resource_use_of_a_run_are_followed_on_its_page(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    id = stack.client.submit(merged(SYNTHETIC, {"name": "one that is watched", "rounds": 1_000_000})).id
    run = stack.client.runs(id)[0].id
    page = opened(f"/runs/{run}")
    ready(page)
    log = page.get_by_role("log", name="Log of the run")
    expect(log.get_by_text("run claimed, 0 of 1000000 rounds are done")).to_be_visible()
    for name in ("CPU", "Memory"):
        expect(page.get_by_role("application", name=name)).to_be_visible()
    expect(page.get_by_role("application", name="GPU")).to_have_count(0)
    page.get_by_role("application", name="CPU").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".spoken")).to_have_text(re.compile(r"seconds: CPU [\d.]+ cores"))
    hold_accessible(page)
    shoot(page, "run-log")
    with page.expect_response(re.compile(r"/resources\?cursor=[1-9]")):
        pass
    stack.client.cancel(id)
    stack.client.wait(id)
    expect(log.get_by_text("run handed back after round")).to_be_visible()
    expect(page.locator("[data-facts]")).to_contain_text("cancelled")
    page.get_by_label("Level").select_option("error")
    expect(log.get_by_role("listitem")).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{run}.log"
    assert download.value.path().read_text() == ""
    page.get_by_label("Level").select_option("debug")
    expect(log.get_by_text("run claimed")).to_be_visible()
    phone = opened(f"/runs/{run}", viewport=PHONE)
    ready(phone)
    expect(phone.get_by_role("log").get_by_text("run claimed")).to_be_visible()
    hold_narrow(phone)


def test_lists_and_matrices_of_a_run_are_drawn_on_its_page(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    measures = ["test_accuracy", "per_class_accuracy", "confusion_matrix"]
    problem = {"partition": {"kind": "dirichlet", "clients": 10, "alpha": 0.3}}
    changes = {"name": "one that confuses digits", "problem": problem, "evaluation": {"measures": measures}}
    id = stack.client.submit(merged(DIGITS, changes)).id
    stack.client.wait(id)
    run = stack.client.runs(id)[0]
    page = opened(f"/runs/{run.id}")
    ready(page)
    lists = page.get_by_role("region", name="Lists and matrices")
    expect(lists.get_by_role("heading")).to_have_text(f"Lists and matrices, round {run.rounds_total}")
    for name in ("per class accuracy, by class: 10 values", "confusion matrix, by true class and predicted"):
        plot = lists.get_by_role("img", name=name)
        expect(plot.locator("canvas").first).to_be_visible()
    # The first cell of the heat map tells its number.
    box = lists.get_by_role("img", name="confusion matrix").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 70, box["y"] + 25)
    hold_accessible(page)
    shoot(page, "run-lists")
    phone = opened(f"/runs/{run.id}", viewport=PHONE)
    ready(phone)
    expect(phone.get_by_role("img", name="confusion matrix").locator("canvas").first).to_be_visible()
    hold_narrow(phone)
