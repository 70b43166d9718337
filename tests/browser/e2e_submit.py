"""Write a specification in the form and in YAML, be told what is wrong and what it would do, and
send it once.
"""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from api.web import rendering
from fedcore.spec import yaml_documents
from fedq.results import presentation
from fedq.schemas import KeyRequest
from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import SYNTHETIC, merged

UNITS = """async ([name, values]) => {
    const { src } = document.querySelector("script[src$='submit.js']");
    const units = await import(src.replace("submit.js", "units.js"));
    return values.map((value) => units[name](value));
}"""
VALID = re.compile("Valid")


def _verdict(page: Page) -> Locator:
    return page.locator("#verdict")


def _field(page: Page, pointer: str) -> Locator:
    """The form's field for what stands at `pointer`."""
    return page.locator(f'[id="f{pointer}"]')


def _text(page: Page) -> str:
    """Content of the editor."""
    text: str = page.evaluate("document.querySelector('.editor').env.editor.getValue()")
    return text


def _write(page: Page, text: str) -> None:
    """Replace what the editor holds, by the keyboard."""
    page.get_by_role("tab", name="YAML").click()
    page.locator(".editor .ace_content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)


@pytest.mark.parametrize(
    ("name", "written", "values"),
    [
        (
            "duration",
            presentation.duration,
            [0, 0.04, 9.94, 10, 59.4, 60, 61, 119.7, 3599.6, 3600, 7500, 86_399.9, 86_400, 1e6],
        ),
        ("bytes", rendering.size, [0, 999, 1_000, 1_234, 999_499, 999_900, 1.5e6, 12.3e9, 4.56e12]),
        ("number", rendering.count, [0, 999, 1_000, 1_234_567]),
    ],
)
def test_the_page_and_the_service_write_figures_alike(
    page: Page, name: str, written: Callable[[float], str], values: list[float]
) -> None:
    page.goto("/submit")
    assert page.evaluate(UNITS, [name, values]) == [written(value) for value in values]


def test_the_form_writes_the_yaml_and_what_it_makes_is_submitted_once(opened: Opened, stack: Stack) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text("Valid: 3 arms, 9 runs")
    _field(page, "/name").fill("from the form")
    _field(page, "/rounds").fill("2")
    _field(page, "/seeds").fill("4, 5")
    _field(page, "/problem/dataset/kind").select_option("synthetic")
    expect(_verdict(page)).to_contain_text("error")
    _field(page, "/problem/partition/kind").select_option(label="none")
    _field(page, "/problem/model/kind").select_option("logistic")
    _field(page, "/problem/dataset/clients").fill("8")
    _field(page, "/participation/clients_per_round").fill("")
    _field(page, "/participation/fraction").fill("0.5")
    expect(_verdict(page)).to_have_text("Valid: 3 arms, 6 runs")
    page.get_by_role("tab", name="YAML").click()
    written = yaml_documents.load(_text(page))
    assert "# Omitted fields take their defaults." in _text(page)
    assert (written["rounds"], written["seeds"]) == (2, [4, 5])
    assert written["problem"] == {
        "dataset": {"kind": "synthetic", "clients": 8},
        "model": {"kind": "logistic"},
    }
    before = {experiment.id for experiment in stack.client.experiments()}
    page.get_by_role("button", name="Submit", exact=True).dblclick()
    expect(page).to_have_url(re.compile("/experiments/exp_"))
    made = {experiment.id for experiment in stack.client.experiments()} - before
    assert made == {page.url.rpartition("/")[2]}
    specification = stack.client.experiment(made.pop()).specification
    assert (specification["name"], specification["participation"]["fraction"]) == ("from the form", 0.5)


def test_an_error_is_marked_at_its_line_and_at_its_field_while_it_is_typed(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _write(page, yaml_documents.dump(merged(SYNTHETIC, {"local": {"lr": -1}})))
    expect(_verdict(page)).to_have_text("1 error")
    expect(page.locator(".ace_gutter-cell.ace_error")).to_have_count(1)
    line = int(page.locator(".ace_gutter-cell.ace_error").inner_text())
    assert "lr" in _text(page).splitlines()[line - 1]
    page.get_by_role("link", name=f"line {line}").click()
    assert page.evaluate("document.querySelector('.editor').env.editor.getCursorPosition().row") == line - 1
    page.get_by_role("tab", name="Form").click()
    field = _field(page, "/local/lr")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator('[id="f/local/lr-flaw"]')).to_contain_text("greater than 0")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_attribute("aria-disabled", "true")
    field.fill("0.1")
    expect(_verdict(page)).to_have_text(VALID)
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_text_that_is_no_document_is_kept_and_said_to_be_none(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _write(page, "name: [broken")
    expect(_verdict(page)).to_have_text("1 error")
    page.get_by_role("tab", name="Form").click()
    expect(page.get_by_text("is not a valid mapping")).to_be_visible()
    page.get_by_role("tab", name="YAML").click()
    assert _text(page).startswith("name: [broken")


def test_comments_and_what_the_form_does_not_know_survive_it(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    document = merged(SYNTHETIC, {"colour": "red", "algorithm": {"kind": "fedsgd", "mu": 1}})
    _write(page, f"# kept\n{yaml_documents.dump(document)}# kept too\n")
    expect(_verdict(page)).to_have_text("2 errors")
    page.get_by_role("tab", name="Form").click()
    expect(_field(page, "/colour")).to_have_value("red")
    _field(page, "/rounds").fill("7")
    page.get_by_role("tab", name="YAML").click()
    assert yaml_documents.load(_text(page)) == document | {"rounds": 7}
    assert "# kept\n" in _text(page)
    assert "# kept too\n" in _text(page)


def test_a_kind_that_is_chosen_again_has_its_fields_back(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    kind = _field(page, "/problem/partition/kind")
    kind.focus()
    kind.select_option("shards")
    expect(_field(page, "/problem/partition/clients")).to_have_value("30")
    expect(_field(page, "/problem/partition/alpha")).to_have_count(0)
    expect(kind).to_be_focused()
    kind.select_option("dirichlet")
    expect(_field(page, "/problem/partition/alpha")).to_have_value("0.1")


def test_a_preset_is_found_changed_and_submitted_as_itself(opened: Opened, stack: Stack) -> None:
    page = opened("/submit")
    page.get_by_role("searchbox").fill("digits stragglers demo")
    page.get_by_role("link", name="demo", exact=True).click()
    expect(_verdict(page)).to_have_text("Valid: 4 arms, 12 runs")
    _field(page, "/rounds").fill("2")
    _field(page, "/seeds").fill("0")
    expect(_verdict(page)).to_have_text("Valid: 4 arms, 4 runs")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page).to_have_url(re.compile("/experiments/exp_"))
    provenance = stack.client.experiment(page.url.rpartition("/")[2]).provenance
    assert (provenance["preset"], provenance["overrides"]) == ("demo", {"rounds": 2, "seeds": [0]})


def test_a_draft_survives_a_reload_and_is_found_again(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _field(page, "/name").fill("half a thought")
    page.reload()
    expect(_field(page, "/name")).to_have_value("half a thought")
    page.goto("/submit?preset=demo")
    page.locator("summary", has_text="Start from").click()
    page.get_by_role("link", name="half a thought").click()
    expect(_field(page, "/name")).to_have_value("half a thought")
    page.get_by_role("button", name="Discard changes").click()
    expect(_field(page, "/name")).to_have_value("my first experiment")


def test_drafts_are_shown_to_their_owner_only(opened: Opened, stack: Stack) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _field(page, "/name").fill("half a secret")
    page.goto("/submit?preset=demo")
    expect(page.locator("#drafts a", has_text="half a secret")).to_have_count(1)
    key = stack.client.create_key(KeyRequest(owner="another"))
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").fill(key.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".who")).to_contain_text("another")
    page.goto("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    expect(_field(page, "/name")).to_have_value("my first experiment")
    page.goto("/submit?preset=demo")
    expect(_verdict(page)).to_have_text(VALID)
    expect(page.locator("#drafts a")).to_have_count(0)


def test_the_keyboard_gets_into_the_editor_and_out_of_it(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    page.get_by_role("tab", name="Form").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="YAML")).to_be_focused()
    host = page.locator(".editor .ace_scroller")
    for _ in range(4):
        page.keyboard.press("Tab")
        if host.evaluate("host => host.contains(document.activeElement)"):
            break
    page.keyboard.press("Enter")
    page.keyboard.type("x")
    assert _text(page).startswith("x#")
    page.keyboard.press("Escape")
    for _ in range(4):
        page.keyboard.press("Tab")
    assert not page.locator(".editor").evaluate("host => host.contains(document.activeElement)")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_form_is_accessible_and_looks_right(opened: Opened, shoot: Shoot, scheme: str) -> None:
    dark = scheme == "dark"
    page = opened("/submit", color_scheme=scheme)
    expect(_verdict(page)).to_have_text(VALID)
    hold_accessible(page, colours_only=dark)
    shoot(page, f"submit-form-{scheme}")
    for block in ("systems", "evaluation", "search", "execution"):
        page.locator(f'[id="f/{block}"]').click()
    hold_accessible(page, colours_only=dark)
    _write(page, yaml_documents.dump(merged(SYNTHETIC, {"local": {"lr": -1}, "colour": "red"})))
    expect(_verdict(page)).to_have_text("2 errors")
    hold_accessible(page, colours_only=dark)
    shoot(page, f"submit-yaml-{scheme}")


def test_a_phone_shows_all_of_it(opened: Opened, shoot: Shoot) -> None:
    page = opened("/submit", viewport=PHONE, has_touch=True, is_mobile=True)
    expect(_verdict(page)).to_have_text(VALID)
    ready(page)
    hold_narrow(page)
    shoot(page, "submit-phone")
    page.get_by_role("tab", name="YAML").click()
    hold_narrow(page)


def test_code_in_an_error_is_shown_as_code(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _write(page, yaml_documents.dump(merged(SYNTHETIC, {"sweep": {"arms": [1]}})))
    expect(_verdict(page)).to_have_text("1 error")
    flaw = page.locator(".flaws li")
    expect(flaw).to_contain_text("each entry of arms must map dotted paths to values")
    expect(flaw.locator("code")).to_have_text("arms")


def test_each_field_has_a_help_text_of_its_own(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    texts = [page.locator(f'[id="f/{name}-help"]').inner_text() for name in ("name", "description", "tags")]
    assert len(set(texts)) == 3


def _row(page: Page, field: str, values: str) -> Locator:
    """A new row of the sweep."""
    page.get_by_role("button", name="Add a field to sweep").click()
    row = page.locator('details:has(> [id="f/sweep"]) .row').last
    row.get_by_label("Field to sweep").fill(field)
    row.locator("input").last.fill(values)
    return row


def _hold_refused(page: Page, stack: Stack, detail: str) -> None:
    """Fail where a document with one error that the form found can be submitted."""
    before = [experiment.id for experiment in stack.client.experiments()]
    submit = page.get_by_role("button", name="Submit", exact=True)
    # Where the check was quicker than the click the button says that it is disabled, and takes clicks.
    submit.click(force=True)
    expect(page.get_by_text("Correct the errors first.").first).to_be_visible()
    expect(submit).to_have_attribute("aria-disabled", "true")
    expect(_verdict(page)).to_have_text("1 error")
    expect(page.locator(".flaws li")).to_contain_text(detail)
    assert [experiment.id for experiment in stack.client.experiments()] == before


def test_unreadable_value_of_a_field_is_an_error_until_it_is_corrected(opened: Opened, stack: Stack) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    for pointer, text in (("/seeds", "3, 4, {5}, ["), ("/rounds", "{2"), ("/problem/model/hidden", "8, [")):
        field = _field(page, pointer)
        before = field.input_value()
        field.fill(text)
        _hold_refused(page, stack, "invalid value")
        _field(page, "/problem/partition/kind").select_option("shards")
        _field(page, "/problem/partition/kind").select_option("dirichlet")
        page.get_by_role("tab", name="YAML").click()
        page.locator(".flaws a").click()
        expect(field).to_be_focused()
        expect(field).to_have_value(text)
        expect(field).to_have_attribute("aria-invalid", "true")
        field.fill(before)
        expect(_verdict(page)).to_have_text(VALID)
        expect(field).not_to_have_attribute("aria-invalid", "true")


def test_a_row_of_the_sweep_that_cannot_be_read_is_an_error(opened: Opened, stack: Stack) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text("Valid: 3 arms, 9 runs")
    for field, values, detail in (
        ("local.momentum", "{a: 1}, {a: 2", "values of local.momentum"),
        ("local.momentum", "", "local.momentum needs at least one value"),
        ("", "0.1, 1", "0.1, 1: which field has these values?"),
        ("local.lr", "0.1", "local.lr stands in two rows"),
    ):
        if field == "local.lr":
            _row(page, "local.lr", "0.2")
            expect(_verdict(page)).to_have_text("Valid: 3 arms, 9 runs")
        row = _row(page, field, values)
        _hold_refused(page, stack, detail)
        expect(row.locator("[aria-invalid=true]")).to_have_count(1)
        row.get_by_role("button", name="Remove").click()
        expect(_verdict(page)).to_have_text("Valid: 3 arms, 9 runs")


def test_yaml_replaces_what_the_form_could_not_read(opened: Opened) -> None:
    page = opened("/submit")
    expect(_verdict(page)).to_have_text(VALID)
    _field(page, "/seeds").fill("3, [")
    expect(_verdict(page)).to_have_text("1 error")
    _write(page, yaml_documents.dump(SYNTHETIC))
    expect(_verdict(page)).to_have_text(VALID)
    page.get_by_role("tab", name="Form").click()
    expect(_field(page, "/seeds")).not_to_have_value("3, [")


def test_leading_arms_are_confirmed_on_fresh_seeds(opened: Opened, stack: Stack) -> None:
    """From the page of results, over the form, to an experiment whose figures are not selected."""
    rates = {"sweep": {"local.lr": [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4]}}
    changes = {"name": "many rates", "rounds": 2, "seeds": [0, 1, 2], **rates}
    id = stack.client.submit(merged(SYNTHETIC, changes)).id
    stack.client.wait(id)
    page = opened(f"/experiments/{id}")
    expect(page.locator(".conclusion")).to_contain_text("selected from 7 arms")
    page.get_by_role("link", name="Confirm on fresh seeds").click()
    expect(page.get_by_text("leading arms of many rates")).to_be_visible()
    expect(_verdict(page)).to_have_text("Valid: 5 arms, 50 runs")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page).to_have_url(re.compile("/experiments/exp_"))
    made = stack.client.experiment(page.url.rpartition("/")[2])
    assert made.specification["seeds"] == list(range(3, 13))
    assert (len(made.arms), made.tags) == (5, ["confirmation"])
    stack.client.wait(made.id)
    page.reload()
    expect(page.locator(".conclusion")).not_to_be_empty()
    expect(page.locator(".conclusion")).not_to_contain_text("selected")
    for one in (id, made.id):
        stack.client.delete(one)
