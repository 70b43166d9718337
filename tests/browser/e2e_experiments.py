"""Sign in, find an experiment, watch it, act on it, take it home."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import DIGITS, SYNTHETIC, merged

SHORT = merged(
    SYNTHETIC,
    {
        "name": "FedAvg and FedProx on unequal clients",
        "description": "Softmax regression on eight synthetic clients, half of them stragglers.",
        "tags": ["synthetic", "thesis"],
        "seeds": [0, 1, 2],
        "rounds": 40,
        "sweep": {"algorithm": [{"kind": "fedavg"}, {"kind": "fedprox", "mu": 0.1}]},
    },
)
LONG = merged(SYNTHETIC, {"name": "one that takes long", "rounds": 1_000_000, "tags": ["long"]})
SHOWN = (("Runs", "light"), ("Specification", "dark"), ("Downloads", "light"))
"""Parts of the page that pictures are kept of."""


@pytest.fixture(scope="module")
def done(stack: Stack) -> str:
    """The id of an experiment that has succeeded."""
    id = stack.client.submit(SHORT).id
    stack.client.wait(id)
    return id


@pytest.fixture(scope="module")
def others(stack: Stack) -> None:
    """Two that rest: one is paused, one was cancelled."""
    for name, act in (
        ("Client drift under label skew", stack.client.pause),
        ("Step sizes for SCAFFOLD", stack.client.cancel),
    ):
        act(stack.client.submit(merged(LONG, {"name": name, "tags": ["thesis"]})).id)


def taken_over(page: Page) -> None:
    """Wait until the script of the experiment's page has made its tabs."""
    expect(page.get_by_role("tab", name="Results")).to_have_attribute("tabindex", "0")


def test_a_stranger_signs_in_with_a_key_and_gets_where_they_wanted(
    opened: Opened, stack: Stack, done: str, shoot: Shoot
) -> None:
    page = opened("/", known=None)
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    page.goto(f"/experiments/{done}")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.wait_for_load_state("networkidle")
    assert refused == []
    hold_accessible(page)
    shoot(page, "sign-in")
    page.get_by_label("API key").fill("guess")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not an API key")
    page.get_by_label("API key").fill(stack.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{stack.url}/experiments/{done}")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))


def test_the_link_of_fedq_up_signs_in_and_leaves_no_key_in_the_history(opened: Opened, stack: Stack) -> None:
    page = opened(f"/sign-in#{stack.key}", known=None)
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    assert page.evaluate("history.length") <= 2
    page.go_back()
    assert stack.key not in page.url


def test_running_experiment_is_watched_cancelled_and_deleted(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    id = stack.client.submit(LONG).id
    page = opened(f"/experiments/{id}")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("running")
    rounds = page.locator("dl.strip")
    before = rounds.inner_text()
    expect(rounds).not_to_have_text(before)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Name").fill("renamed")
    page.get_by_role("button", name="Save").click()
    expect(heading).to_contain_text("renamed")
    page.get_by_role("button", name="Pause").click()
    expect(heading).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel experiment").click()
    expect(heading).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    certain = page.get_by_role("button", name="Delete permanently")
    expect(certain).to_be_disabled()
    page.get_by_label("Type renamed to confirm").fill("renamed")
    certain.click()
    expect(page).to_have_url(f"{stack.url}/")
    assert id not in page.content()


def test_finished_experiment_is_extended_by_rounds_and_seeds(opened: Opened, stack: Stack) -> None:
    id = stack.client.submit(merged(SHORT, {"name": "one that is too short", "rounds": 4})).id
    stack.client.wait(id)
    page = opened(f"/experiments/{id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("succeeded")
    page.get_by_role("button", name="Extend", exact=True).click()
    rounds = page.get_by_label("Total rounds of each run")
    expect(rounds).to_have_value("4")
    rounds.fill("6")
    page.get_by_label("Additional seeds").fill("7, 8")
    hold_accessible(page)
    page.get_by_role("button", name="Extend experiment").click()
    expect(page.locator("dl.strip")).to_contain_text("of 60 rounds")
    assert stack.client.experiment(id).specification["seeds"] == [0, 1, 2, 7, 8]
    stack.client.cancel(id)
    stack.client.delete(id)


def test_the_list_is_narrowed_as_one_types_and_moves_by_itself(
    opened: Opened, stack: Stack, done: str
) -> None:
    page = opened("/")
    ready(page)
    rows = page.locator("tbody tr")
    before = rows.count()
    id = stack.client.submit(LONG).id
    expect(rows).to_have_count(before + 1)
    row = page.locator(f"tr#{id}")
    expect(row).to_contain_text("running")
    page.get_by_label("Name contains").press_sequentially("TAKES long")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("search=TAKES"))
    stack.client.cancel(id)
    expect(row).to_contain_text("cancelled")
    page.get_by_label("Status").select_option("succeeded")
    expect(page.get_by_text("No experiments match the filter.")).to_be_visible()
    stack.client.delete(id)


def test_pages_of_what_was_deleted_elsewhere_say_so(opened: Opened, stack: Stack) -> None:
    id = stack.client.submit(LONG).id
    run = stack.client.runs(id)[0].id
    pages = opened(f"/experiments/{id}"), opened(f"/runs/{run}")
    for page in pages:
        expect(page.locator(".badge").first).to_have_text(re.compile("queued|running"))
        # What pages ask for while the client below is waited for waits, too: none sees it cancelled.
        page.route("**/*", lambda route: route.continue_())
    stack.client.cancel(id)
    stack.client.wait(id)
    stack.client.delete(id)
    for page in pages:
        page.bring_to_front()
        expect(page.locator("#notices")).to_contain_text("It was deleted")
        expect(page.locator(".badge").first).to_have_text("deleted")
        expect(page.get_by_role("button", name="Delete")).to_have_count(0)


def test_an_extension_that_changes_nothing_says_so(opened: Opened, stack: Stack, done: str) -> None:
    page = opened(f"/experiments/{done}")
    taken_over(page)
    seeds = stack.client.experiment(done).specification["seeds"]
    page.get_by_role("button", name="Extend", exact=True).click()
    dialog = page.get_by_role("dialog", name="Extend")
    dialog.get_by_label("Additional seeds").fill(f"{seeds[0]}")
    dialog.get_by_role("button", name="Extend experiment").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing to extend")
    dialog.get_by_label("Additional seeds").fill("9" * 20)
    dialog.get_by_role("button", name="Extend experiment").click()
    expect(dialog.get_by_role("alert")).to_contain_text("9" * 20)


def test_files_are_downloaded_under_their_names(opened: Opened, done: str, tmp_path: Path) -> None:
    page = opened(f"/experiments/{done}#downloads")
    for name, file, beginning in (
        ("YAML", f"{done}.yaml", b"name: FedAvg"),
        ("PNG", f"{done}.png", b"\x89PNG"),
        ("SVG", f"{done}.svg", b"<?xml"),
        ("JSON", f"{done}-results.json", b"{"),
    ):
        with page.expect_download() as download:
            page.locator("#downloads").get_by_role("link", name=name).first.click()
        assert download.value.suggested_filename == file
        assert download.value.path().read_bytes().startswith(beginning)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_pages_are_accessible_and_look_right(
    opened: Opened, done: str, others: None, shoot: Shoot, scheme: str
) -> None:
    dark = scheme == "dark"
    page = opened("/", color_scheme=scheme)
    hold_accessible(page, colours_only=dark)
    shoot(page, f"experiments-{scheme}")
    page.goto(f"/experiments/{done}", wait_until="domcontentloaded")
    taken_over(page)
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(page.locator("section:not([hidden])").get_by_text("Loading…")).to_have_count(0)
        hold_accessible(page, colours_only=dark)
        if (tab.inner_text(), scheme) in SHOWN:
            shoot(page, f"experiment-{tab.inner_text().lower()}-{scheme}")
    page.get_by_role("tab", name="Runs").click()
    page.get_by_role("link", name="fedavg").first.click()
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    hold_accessible(page, colours_only=dark)
    if scheme == "light":
        shoot(page, "run-light")


def test_a_phone_shows_all_of_it(opened: Opened, done: str, shoot: Shoot) -> None:
    page = opened("/", viewport=PHONE, has_touch=True, is_mobile=True)
    hold_narrow(page)
    shoot(page, "experiments-phone")
    page.goto(f"/experiments/{done}", wait_until="domcontentloaded")
    taken_over(page)
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(page.locator("section:not([hidden])").get_by_text("Loading…")).to_have_count(0)
        hold_narrow(page)
    page.reload()
    for name in ("Access", "Results"):
        if name == "Results":
            page.goto(f"/experiments/{done}#results")
        expect(page.get_by_role("tab", name=name, selected=True)).to_be_in_viewport(ratio=0.9)
    shoot(page, "experiment-phone")


def test_tabs_are_in_the_address_and_in_the_history(opened: Opened, done: str) -> None:
    page = opened(f"/experiments/{done}")
    taken_over(page)
    fetched_again: list[str] = []
    page.on(
        "request",
        lambda sent: fetched_again.append(sent.url) if "hx-history-restore-request" in sent.headers else None,
    )

    def holds(tab: str, address: str) -> None:
        expect(page.get_by_role("tab", selected=True)).to_have_text(tab)
        expect(page.locator("section[role=tabpanel]:visible")).to_have_attribute("id", tab.lower())
        expect(page).to_have_url(re.compile(f"{done}{address}$"))

    page.get_by_role("tab", name="Specification").click()
    # A part that is refreshed: its script then holds the place in the history for its own.
    with page.expect_response("**/runs"):
        page.evaluate("htmx.trigger(document.getElementById('runs-table'), 'refresh')")
    expect(page.locator("#runs-table table")).to_have_count(1)
    page.get_by_role("tab", name="Downloads").click()
    page.locator("#downloads").get_by_role("link", name="Runs").click()
    holds("Runs", "#runs")
    # As typed into the address.
    page.evaluate("location.hash = 'provenance'")
    holds("Provenance", "#provenance")
    for tab in ("Runs", "Downloads", "Specification"):
        page.go_back()
        holds(tab, f"#{tab.lower()}")
    page.go_back()
    holds("Results", "")
    page.go_forward()
    holds("Specification", "#specification")
    # Tabs share one view: what was changed in between stays.
    page.go_back()
    page.get_by_label("Band over seeds").select_option("ci")
    page.go_forward()
    holds("Specification", r"\?band=ci#specification")
    page.go_back()
    holds("Results", r"\?band=ci")
    expect(page.get_by_label("Band over seeds")).to_have_value("ci")
    page.evaluate("location.hash = 'main'")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Results")
    assert fetched_again == [], "a page that is fetched again loses its controls"


def test_experiment_of_little_use_has_a_mark_and_says_why(opened: Opened, stack: Stack) -> None:
    useless = {
        "name": "at chance",
        "problem": {"model": {"kind": "mlp", "hidden": [16]}},
        "local": {"lr": 1000.0},
        "rounds": 2,
        "seeds": [0],
    }
    id = stack.client.submit(merged(DIGITS, useless)).id
    assert stack.client.wait(id).status == "succeeded"
    words = "1 of 1 run ended at chance level"
    for scheme in ("light", "dark"):
        page = opened("/", color_scheme=scheme)
        mark = page.locator(f"tr#{id}").get_by_role("img", name=f"Warning: {words}")
        expect(mark).to_be_visible()
        hold_accessible(page, colours_only=scheme == "dark")
        page.goto(f"/experiments/{id}")
        taken_over(page)
        expect(page.locator("p.notice.warning")).to_have_text(words)
        expect(page.locator("table.results tbody tr")).to_contain_text(words)
        hold_accessible(page, colours_only=scheme == "dark")
        page.get_by_role("tab", name="Runs").click()
        expect(page.locator("#runs-table tbody tr")).to_contain_text("ended at chance level: test accuracy")
    stack.client.delete(id)


def test_days_of_the_list_and_times_of_the_log_say_their_zone(
    opened: Opened, done: str, stack: Stack
) -> None:
    page = opened("/", timezone_id="Asia/Tokyo")
    day = stack.client.experiment(done).created_at.strftime("%Y-%m-%d")
    page.get_by_label("Submitted from (UTC)").fill(day)
    page.get_by_label("until (UTC)").fill(day)
    expect(page).to_have_url(re.compile(f"until={day}"))
    expect(page.locator(f"tr#{done}")).to_be_visible()
    page.goto(f"/runs/{stack.client.runs(done)[0].id}")
    expect(page.get_by_role("log").locator("time").first).to_have_text(
        re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
    )


def test_a_tab_chosen_while_the_page_loads_keeps_the_focus(opened: Opened, done: str) -> None:
    """A browser goes to what the address names once it has parsed a page, and clears the focus
    where that cannot be focused.
    """
    page = opened("/")
    held: list[Route] = []
    page.route("**/curves.js", lambda route: held.append(route))  # noqa: PLW0108 (Playwright marks the function)
    with page.expect_request("**/curves.js"):
        page.goto(f"/experiments/{done}", wait_until="commit")
    taken_over(page)
    page.get_by_role("tab", name="Arms").focus()
    page.keyboard.press("ArrowRight")
    runs = page.get_by_role("tab", name="Runs")
    expect(runs).to_be_focused()
    held.pop().continue_()
    page.wait_for_load_state()
    expect(page).to_have_url(re.compile("#runs$"))
    # The first table of the runs comes after whatever the browser does at the end of loading.
    expect(page.get_by_role("link", name="fedavg").first).to_be_visible()
    expect(runs).to_be_focused()


def test_a_keyboard_is_enough(page: Page, done: str) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="FedAvg and FedProx on unequal clients").focus()
    page.keyboard.press("Enter")
    taken_over(page)
    page.get_by_role("tab", name="Arms").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Runs")).to_be_focused()
    run = page.get_by_role("link", name="fedavg").first
    expect(run).to_be_visible()
    run.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(run).to_be_focused()
