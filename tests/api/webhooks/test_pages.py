"""The page `/webhooks`, and who may see it."""

import html
import json
import re

import httpx
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, webhook_deliveries
from fedcore.settings import Settings
from tests.api.conftest import browsing
from tests.builders.experiments import submit_over_http
from tests.builders.transactions import write
from tests.builders.webhooks import BAD, claim_delivery, create_webhook
from tests.support.access import key_for


def test_webhooks_are_listed_to_their_owner_and_to_administrators(
    browser: httpx.Client, ann: httpx.Client, rows: Database
) -> None:
    mine, hers = create_webhook(rows, name="the chat"), create_webhook(rows, owner="ann", name="her notebook")
    everything = browser.get("/webhooks").text
    assert f'href="/webhooks/{mine.id}"' in everything
    assert f'href="/webhooks/{hers.id}"' in everything
    page = ann.get("/webhooks").text
    assert "her notebook" in page
    assert "the chat" not in page
    assert ann.get(f"/webhooks/{mine.id}").status_code == 404
    assert browser.get("/webhooks/whk_nothing").status_code == 404


def test_webhook_is_shown_with_its_last_delivery_and_without_its_secret(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    experiment = submit_over_http(http)["id"]
    hook = create_webhook(rows, name="the chat", experiment_id=experiment)
    assert "none yet" in browser.get(f"/webhooks/{hook.id}").text
    write(rows, webhook_deliveries.ping, hook.id)
    write(rows, webhook_deliveries.record_attempt, claim_delivery(rows), BAD, 0.5)
    page = html.unescape(browser.get(f"/webhooks/{hook.id}").text)
    assert "the answer was 500" in page
    assert "next attempt" in page
    assert "whsec_" not in page
    (terms,) = re.findall(r'data-terms="(\{.*?\})"', page)
    kept = json.loads(terms)
    assert (kept["name"], kept["experiment_id"], kept["url"]) == ("the chat", experiment, hook.url)
    assert http.patch(f"/v1/webhooks/{hook.id}", json={**kept, "url": None}).status_code == 200
    http.patch(f"/v1/webhooks/{hook.id}", json={"enabled": False})
    assert "its owner disabled it" in browser.get(f"/webhooks/{hook.id}").text


def test_readers_change_no_webhook(app: FastAPI, settings: Settings, rows: Database) -> None:
    hook = create_webhook(rows, owner="eve")
    with browsing(app, key_for(settings.database, "eve", Scope.READ)) as reader:
        for path in ("/webhooks", f"/webhooks/{hook.id}"):
            page = reader.get(path).text
            assert "webhooks.js" not in page
            assert "data-action" not in page
