"""No page is wider than its window, however long the names on it are."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from fedq.schemas import KeyRequest
from tests.browser.conftest import Opened, Stack, hold_narrow, ready
from tests.builders.specifications import SYNTHETIC, merged

WIDTHS = (360, 1280, 1440)
NAME = "n" * 200
LONG = merged(
    SYNTHETIC,
    {
        "name": NAME,
        "description": "d" * 300,
        "tags": ["t" * 64],
        "seeds": [0],
        "rounds": 2,
        "sweep": {"arms": [{"name": "a" * 200, "local.lr": 0.1}, {"name": "b" * 200, "local.lr": 0.05}]},
    },
)
TABS = ("results", "settings", "arms", "runs", "specification", "provenance", "downloads", "access")


@pytest.fixture(scope="module")
def long(stack: Stack) -> Iterator[str]:
    """The id of an experiment of long names, beside a queued one, a key and a webhook of long names."""
    id = stack.client.submit(LONG).id
    stack.client.wait(id)
    waiting = stack.client.submit(merged(LONG, {"name": "w" * 200, "execution": {"queue": "q" * 64}})).id
    key = stack.client.create_key(KeyRequest(owner="o" * 64, name="k" * 100, scope="read"))
    hook = stack.client.webhooks.create(f"https://1.1.1.1/{'p' * 300}", name="h" * 100).id
    yield id
    stack.client.cancel(waiting)
    for one in (id, waiting):
        stack.client.delete(one)
    stack.client.revoke_key(key.id)
    stack.client.webhooks.delete(hook)


def hold_at_all_widths(page: Page) -> None:
    for width in WIDTHS:
        page.set_viewport_size(ViewportSize(width=width, height=800))
        # Charts are drawn anew for the width.
        page.wait_for_function(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        )
        hold_narrow(page)


def test_every_page_wraps_long_names(opened: Opened, stack: Stack, long: str) -> None:
    run = stack.client.runs(long)[0].id
    (hook,) = [hook.id for hook in stack.client.webhooks.list() if hook.name.startswith("h")]
    paths = [
        *("/", "/arms", "/compare", f"/compare?arm={long}", "/queue", "/keys", "/webhooks", "/audit"),
        *("/submit", f"/submit?from={long}", "/submit?preset=demo", f"/webhooks/{hook}", f"/runs/{run}"),
    ]
    page = opened("/")
    for path in paths:
        page.goto(path)
        ready(page)
        hold_at_all_widths(page)
    page.goto(f"/experiments/{long}")
    ready(page)
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        expect(page.locator("section:not([hidden])").get_by_text("Loading…")).to_have_count(0)
        hold_at_all_widths(page)
    page.goto("/experiments/no-such-one-" + "x" * 200)
    ready(page)
    hold_at_all_widths(page)


def test_the_bar_holds_a_long_owner(opened: Opened, stack: Stack) -> None:
    key = stack.client.create_key(KeyRequest(owner="o" * 64, scope="submit"))
    page = opened(f"/sign-in#{key.key}", known=None)
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    hold_at_all_widths(page)
    stack.client.revoke_key(key.id)
