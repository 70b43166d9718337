"""Look at the queue; make, change and revoke keys; read the audit log."""

import httpx
import pytest
from playwright.sync_api import FloatRect, Page, expect

from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import SYNTHETIC, merged

LONG = merged(SYNTHETIC, {"name": "one that takes long", "rounds": 1_000_000})


def test_the_queue_shows_what_runs_and_what_waits_and_follows_it(
    opened: Opened, stack: Stack, shoot: Shoot
) -> None:
    running = stack.client.submit(LONG).id
    homeless = stack.client.submit(
        merged(LONG, {"name": "without a worker", "execution": {"queue": "gpu"}})
    ).id
    pages = {scheme: opened("/queue", color_scheme=scheme) for scheme in ("dark", "light")}
    for scheme, page in pages.items():
        ready(page)
        expect(page.get_by_role("link", name="one that takes long")).to_be_visible()
        expect(page.get_by_text("busy")).to_be_visible()
        expect(page.get_by_text("no worker currently serves the queue 'gpu'")).to_be_visible()
        hold_accessible(page, colours_only=scheme == "dark")
        shoot(page, f"queue-{scheme}")
    page = pages["light"]
    for id in (running, homeless):
        stack.client.cancel(id)
    expect(page.get_by_text("idle")).to_be_visible()
    expect(page.get_by_text("without a worker")).to_have_count(0)


def test_a_key_is_made_shown_once_changed_and_revoked(opened: Opened, stack: Stack) -> None:
    page = opened("/keys")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    page.get_by_label("Owner").fill("no such name")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_label("Owner")).to_have_attribute("aria-invalid", "true")
    hold_accessible(page)
    page.get_by_label("Owner").fill("ann")
    page.get_by_label("Name", exact=True).fill("her notebook")
    page.get_by_label("Scope").select_option("read")
    page.get_by_role("button", name="Create", exact=True).click()
    key = page.get_by_role("textbox", name="API key").input_value()
    owner = httpx.get(f"{stack.url}/v1/me", headers={"Authorization": f"Bearer {key}"}).json()["key"]["owner"]
    assert owner == "ann"
    page.get_by_role("button", name="Done").click()
    expect(dialog).to_have_count(0)
    row = page.get_by_role("row").filter(has_text="her notebook")
    expect(row).to_contain_text("read")
    row.get_by_role("button", name="Edit").click()
    page.get_by_label("Running runs").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("running runs: 3")
    assert key not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("valid")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_contain_text("revoked")
    assert httpx.get(f"{stack.url}/v1/me", headers={"Authorization": f"Bearer {key}"}).status_code == 401


def test_the_end_of_a_key_is_typed_and_listed_in_utc(opened: Opened) -> None:
    page = opened("/keys", timezone_id="Asia/Tokyo")
    ready(page)
    page.get_by_role("button", name="Create key").click()
    page.get_by_label("Owner").fill("ann")
    page.get_by_label("Name", exact=True).fill("one that ends")
    page.get_by_label("Expires (UTC)").fill("2040-01-02T03:04")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="one that ends")
    expect(row).to_contain_text("2040-01-02 03:04:00 UTC")
    row.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Expires (UTC)")).to_have_value("2040-01-02T03:04")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("2040-01-02 03:04:00 UTC")


def test_titles_with_a_button_beside_them_stand_at_one_height(opened: Opened) -> None:
    places = [box["y"] for path in ("/", "/webhooks") if (box := _title(opened(path)))]
    assert len(places) == 2
    assert abs(places[0] - places[1]) < 1


def _title(page: Page) -> FloatRect | None:
    ready(page)
    return page.get_by_role("heading", level=1).bounding_box()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["keys", "audit", "webhooks"])
def test_keys_and_the_audit_log_are_accessible_and_look_right(
    opened: Opened, shoot: Shoot, name: str, scheme: str
) -> None:
    page = opened(f"/{name}", color_scheme=scheme)
    ready(page)
    hold_accessible(page, colours_only=scheme == "dark")
    shoot(page, f"{name}-{scheme}")


@pytest.mark.parametrize("name", ["queue", "keys", "audit", "webhooks"])
def test_a_phone_shows_all_of_them(opened: Opened, shoot: Shoot, name: str) -> None:
    page = opened(f"/{name}", viewport=PHONE, has_touch=True, is_mobile=True)
    ready(page)
    hold_narrow(page)
    shoot(page, f"{name}-phone")


def test_a_webhook_that_may_not_be_made_says_why(opened: Opened) -> None:
    page = opened("/webhooks")
    page.get_by_role("button", name="Create webhook").click()
    page.get_by_label("URL").fill("https://127.0.0.1/hook")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_label("URL")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#w-url-flaw")).to_be_visible()
    hold_accessible(page)
    page.keyboard.press("Escape")
    expect(page.get_by_text("No webhooks yet.")).to_be_visible()
