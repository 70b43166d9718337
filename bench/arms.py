"""Measure the page of an experiment with 10,000 arms in a real browser: opening it, and sorting and
filtering its table of arms.

Medians over repetitions, from the click until the browser has painted what was asked for, beside
their targets. Chromium must be on PATH.

    python -m bench arms [--turns 5]
"""

import shutil
import statistics
from collections.abc import Callable, Sequence

from playwright.sync_api import Browser, Page, sync_playwright

from bench.options import command
from fedcore.presets import load
from fedq.client import Client
from fedq.embedded import embedded_service

ARMS = 10_000
SWEEP = {
    "local.lr": [round(0.001 * step, 3) for step in range(1, 101)],
    "local.batch_size": list(range(1, 101)),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_MS = 120_000
OPEN_S, CHANGE_S = 2.0, 0.3
"""Targets."""
COUNT = "document.getElementById('arms-count').textContent"
SORT = "document.querySelector('[tabulator-field=\"local.batch_size\"] .tabulator-col-title button')"
SORTED = "document.querySelector('.tabulator-col[tabulator-field=\"local.batch_size\"]').ariaSort"
FILTER = "document.getElementById('arms-filter')"

TABLE = f"() => document.querySelector('.tabulator-row') && {COUNT}.startsWith('10,000 of 10,000')"


def main(arguments: Sequence[str]) -> None:
    """Submit the sweep to a queue without workers and measure its pages."""
    parser = command("arms", __doc__)
    parser.add_argument("--turns", type=int, default=5, help="repetitions of each action")
    turns = parser.parse_args(arguments).turns
    path = next(found for name in BROWSERS if (found := shutil.which(name)))
    spec = load("demo").spec | {"seeds": [0], "rounds": 1, "sweep": SWEEP, "execution": {"queue": "none"}}
    with (
        embedded_service(workers=0) as (url, key),
        Client(url, key, timeout_s=120) as client,
        sync_playwright() as playwright,
    ):
        place = f"{url}/experiments/{client.submit(spec | {'name': 'bench'}).id}"
        browser = playwright.chromium.launch(
            executable_path=path, args=["--disable-gpu", "--no-sandbox"], chromium_sandbox=False
        )
        page = _signed_in(browser, url, key)
        _print("open the experiment", OPEN_S, lambda: _open(page, place), turns)
        _print("sort the table", CHANGE_S, lambda: _sort(page), turns)
        _print("filter the table", CHANGE_S, lambda: _filter(page), turns)
        browser.close()


def _print(name: str, target_s: float, action: Callable[[], float], turns: int) -> None:
    action()
    median = statistics.median(action() for _ in range(turns))
    print(f"{name:24} {median:6.2f} s  (target {target_s} s)", flush=True)


def _signed_in(browser: Browser, url: str, key: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{url}/sign-in#{key}")
    page.wait_for_url(f"{url}/")
    return page


def _open(page: Page, place: str) -> float:
    """Seconds from the request of a page until its table is drawn."""
    page.goto("about:blank")
    page.goto(place, wait_until="commit")
    page.wait_for_function(TABLE)
    drawn_ms = page.evaluate("async () => (await new Promise(requestAnimationFrame), performance.now())")
    return float(drawn_ms) / 1000


def _until(page: Page, act: str, done: str) -> float:
    """Seconds of an action until a condition holds and the next frame is drawn."""
    return float(
        page.evaluate(
            f"""async () => {{
                const began = performance.now();
                {act};
                do await new Promise(requestAnimationFrame); while (!({done}));
                await new Promise(requestAnimationFrame);
                return (performance.now() - began) / 1000;
            }}"""
        )
    )


def _sort(page: Page) -> float:
    before = page.evaluate(f"() => {SORTED}")
    return _until(page, f"{SORT}.click()", f"{SORTED} !== {before!r}")


def _filter(page: Page) -> float:
    """Seconds of a filter that keeps 450 arms; it is taken back untimed."""
    act = f"{FILTER}.value = '{{}}'; {FILTER}.form.requestSubmit()"
    words = "local.lr < 0.010 and local.batch_size > 50"
    found = _until(page, act.format(words), f"{COUNT}.startsWith('450 of')")
    _until(page, act.format(""), f"{COUNT}.startsWith('10,000 of')")
    return found
