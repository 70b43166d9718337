"""Notes, stars, the archive and sharing; the keyboard; the navigation of a phone."""

import re

import pytest
from playwright.sync_api import expect

from fedq.schemas import KeyRequest
from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import SYNTHETIC, merged


@pytest.fixture(scope="module")
def done(stack: Stack) -> str:
    """The id of an experiment that has succeeded."""
    id = stack.client.submit(merged(SYNTHETIC, {"name": "one with notes", "rounds": 4})).id
    stack.client.wait(id)
    return id


def test_notes_are_written_and_stars_and_the_archive_sort_the_list(
    opened: Opened, stack: Stack, done: str, shoot: Shoot
) -> None:
    page = opened(f"/experiments/{done}")
    ready(page)
    page.get_by_text("Add notes").click()
    page.get_by_label("Notes in Markdown").fill("# Finding\nFedAvg is **enough** <script>alert(1)</script>")
    page.get_by_role("button", name="Save notes").click()
    expect(page.locator(".notes strong")).to_have_text("enough")
    assert stack.client.experiment(done).notes.startswith("# Finding")
    hold_accessible(page)
    shoot(page, "notes")
    page.get_by_role("button", name="Star").click()
    expect(page.get_by_role("button", name="Star", pressed=True)).to_be_visible()
    run = stack.client.runs(done)[0].id
    page.goto(f"/runs/{run}")
    ready(page)
    page.get_by_text("Add notes").click()
    page.get_by_label("Notes in Markdown").fill("seed *zero*\n\n| left | right |\n|:--|--:|\n| 1 | 2 |")
    page.get_by_role("button", name="Save notes").click()
    expect(page.locator(".notes em")).to_have_text("zero")
    expect(page.locator(".notes td").last).to_have_css("text-align", re.compile("right$"))
    page.goto("/experiments?shown=starred")
    ready(page)
    star = page.get_by_role("button", name="Star one with notes")
    expect(star).to_have_attribute("aria-pressed", "true")
    hold_accessible(page)
    star.click()
    expect(page.get_by_text("No experiments match the filter.")).to_be_visible()
    page.goto(f"/experiments/{done}")
    ready(page)
    page.get_by_role("tab", name="Access").click()
    for name in ("ben", "eve"):
        stack.client.create_key(KeyRequest(owner=name))
    page.get_by_label("May read").fill("ben, eve")
    page.get_by_label("May also edit").fill("eve")
    hold_accessible(page)
    shoot(page, "access")
    page.get_by_label("May read").fill("ben, evee")
    page.get_by_role("button", name="Save access").click()
    expect(page.locator("#sharing .flaw")).to_contain_text("there is no user 'evee'")
    hold_accessible(page)
    page.get_by_label("May read").fill("ben, eve")
    page.get_by_role("button", name="Save access").click()
    expect(page.get_by_label("May read")).to_have_value("ben")
    assert stack.client.access(done).write == ["eve"]
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("archived")
    page.goto("/")
    ready(page)
    expect(page.get_by_role("link", name="one with notes")).to_have_count(0)
    page.get_by_label("Show").select_option("archived")
    expect(page.get_by_role("link", name="one with notes")).to_be_visible()


def test_keys_find_the_search_and_list_themselves(opened: Opened, done: str) -> None:
    page = opened("/queue")
    ready(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    hold_accessible(page)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    field = page.get_by_label("Name contains")
    expect(field).to_be_focused()
    page.keyboard.type("/?")
    expect(field).to_have_value("/?")
    page.goto(f"/experiments/{done}#arms")
    ready(page)
    page.keyboard.press("/")
    expect(page.locator("#arms-filter")).to_be_focused()


def test_an_experiment_shows_curves_with_its_first_round_and_no_empty_chart_before(
    opened: Opened, stack: Stack
) -> None:
    id = stack.client.submit(
        merged(SYNTHETIC, {"name": "one that begins", "rounds": 4, "execution": {"queue": "nowhere"}})
    ).id
    page = opened(f"/experiments/{id}")
    ready(page)
    expect(page.get_by_text("No rounds yet")).to_be_visible()
    expect(page.locator(".plot")).to_have_count(0)
    hold_accessible(page)
    stack.client.cancel(id)
    page.reload()
    expect(page.get_by_text("before it completed a round")).to_be_visible()
    expect(page.locator(".plot")).to_have_count(0)


def test_the_navigation_of_a_phone_shows_that_it_scrolls(opened: Opened) -> None:
    page = opened("/", viewport=PHONE)
    ready(page)
    hold_narrow(page)
    nav = page.get_by_role("navigation", name="Pages")
    assert nav.evaluate("nav => nav.scrollWidth > nav.clientWidth")
    page.goto("/webhooks")
    ready(page)
    assert nav.evaluate("nav => nav.scrollLeft > 0"), "the present page is scrolled into view"
    assert nav.evaluate("nav => getComputedStyle(nav).backgroundAttachment.includes('local')")
