"""One stack and one browser for all tests of pages."""

import os
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from fedcore.platform.status import Status
from fedq.client import Client
from fedq.embedded import embedded_service

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PICTURES = Path(__file__).parents[2] / "docs/images/pages"
LAPTOP, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=360, height=740)
PATIENCE_MS = 60_000
"""Only a failure takes so long."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
CONTRAST = ("color-contrast",)
"""All that other colours can break."""
HARMLESS = ("Failed to load resource",)
"""Messages of browsers about error statuses, which tests check themselves."""

expect.set_options(timeout=PATIENCE_MS)


class Stack(NamedTuple):
    """A running stack."""

    url: str
    key: str
    client: Client


Shoot = Callable[..., None]
Opened = Callable[..., Page]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="make the pictures of docs/images/pages anew")


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A stack with one worker."""
    with embedded_service(workers=1) as (url, key), Client(url, key) as client:
        yield Stack(url, key, client)


@pytest.fixture(autouse=True)
def nothing_left(stack: Stack) -> Iterator[None]:
    """Cancel the experiments that a test leaves: they would keep the worker from those of the next test."""
    yield
    for status in (Status.QUEUED, Status.RUNNING):
        for experiment in stack.client.experiments(status=status):
            stack.client.cancel(experiment.id)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser."""
    path = next((found for found in map(shutil.which, NAMES) if found), None)
    if path is None:
        pytest.fail(f"there is no browser on PATH: install one of {', '.join(NAMES)}")
    # Chromium refuses its sandbox to root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*options, "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def signed_in(chromium: Browser, stack: Stack) -> Any:
    """Cookies of a browser that has signed in."""
    context = chromium.new_context(base_url=stack.url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"/sign-in#{stack.key}")
    page.wait_for_url(f"{stack.url}/")
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def opened(chromium: Browser, stack: Stack, signed_in: Any) -> Iterator[Opened]:
    """Opens a page; `known=None` is the browser of a stranger.

    At the end no page may have reported an error.
    """
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def watch(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(HARMLESS):
            errors.append(message.text)

    def open_page(path: str, known: Any = signed_in, **options: Any) -> Page:
        options = {"viewport": LAPTOP, "reduced_motion": "reduce", **options}
        context = chromium.new_context(base_url=stack.url, storage_state=known, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", watch)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path, wait_until="domcontentloaded")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(opened: Opened) -> Page:
    """The list of experiments, signed in."""
    return opened("/")


@pytest.fixture
def shoot(request: pytest.FixtureRequest) -> Shoot:
    """Keeps a picture of a page under a name, where pictures are wanted."""

    def keep(page: Page, name: str, *, whole: bool = False) -> None:
        if request.config.getoption("--screenshots"):
            PICTURES.mkdir(parents=True, exist_ok=True)
            picture = Image.open(BytesIO(page.screenshot(full_page=whole, animations="disabled")))
            # Of few pixels, too, the colour is kept: that of a badge says how a run ended.
            few = picture.convert("RGB").quantize(
                256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
            )
            few.save(PICTURES / f"{name}.png", optimize=True)

    return keep


def ready(page: Page) -> None:
    """Wait until the page's scripts have taken it over."""
    page.wait_for_load_state()
    expect(page.locator("#theme")).to_be_visible()


def hold_accessible(page: Page, *, colours_only: bool = False) -> None:
    """Fail where a screen reader or somebody with weak eyes would (WCAG 2.2 AA, by axe-core); of a page
    that was checked in other colours, only where its colours would be the reason.
    """
    rules = CONTRAST if colours_only else RULES
    found = Axe().run(page, options={"runOnly": list(rules), "resultTypes": ["violations"]})
    told = [
        f"{violation['id']}: {violation['help']}\n  "
        + "\n  ".join(node["html"] for node in violation["nodes"])
        for violation in found.response["violations"]
    ]
    assert not told, "\n".join(told)


def hold_narrow(page: Page) -> None:
    """Fail where the page is wider than its window: only tables and code may be, each in a box that
    scrolls.
    """
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, f"{page.url} is {wider} px too wide"
