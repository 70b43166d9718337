"""`fedq webhook` and `client.webhooks`."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedcore.platform.store import webhook_deliveries, webhooks
from fedcore.platform.webhooks.events import ENDINGS
from fedcore.platform.webhooks.protocol import ReceiverResponse
from fedq.client import Client, InvalidRequestError
from tests.builders.specifications import TINY
from tests.builders.transactions import write
from tests.builders.webhooks import BAD, GOOD, URL, claim_delivery
from tests.fedq.cli.conftest import Fedq
from tests.platform.store.test_webhook_deliveries import conclude
from tests.support.polling import eventually
from tests.support.service import Service


@pytest.fixture
def hook(service: Service) -> Iterator[str]:
    """The id of a webhook, whose URL no service here could look up."""
    record, _ = write(service.database, webhooks.create, owner="local", url=URL)
    yield record.id
    write(service.database, webhooks.delete, record.id)


def test_where_the_service_may_not_go_is_said_with_the_setting(fedq: Fedq) -> None:
    refused = fedq("webhook", "create", "https://127.0.0.1/x", "--event", "run.failed")
    assert (refused.code, "FEDQ_WEBHOOK_NETWORKS" in refused.err) == (2, True)


def test_a_webhook_is_shown_and_changed(fedq: Fedq, hook: str, client: Client) -> None:
    assert all(word in fedq("webhook", "list").out for word in (hook, URL, "active"))
    assert "all experiments of local" in fedq("webhook", "show", hook).out
    assert json.loads(fedq("webhook", "show", hook, "--json").out)["events"] == list(ENDINGS)
    changed = json.loads(
        fedq("webhook", "edit", hook, "--name", "chat", "--event", "run.failed", "--json").out
    )
    assert (changed["name"], changed["events"]) == ("chat", ["run.failed"])
    experiment = client.submit(TINY).id
    assert f"of {experiment} of local" in fedq("webhook", "edit", hook, "--experiment", experiment).out
    assert "of all experiments of local" in fedq("webhook", "edit", hook, "--experiment", "").out
    assert "whsec_" not in fedq("webhook", "show", hook, "--json").out
    assert "disabled: its owner disabled it" in fedq("webhook", "edit", hook, "--disable").out
    assert "disabled" not in fedq("webhook", "edit", hook, "--enable").out


def test_the_last_delivery_is_shown(fedq: Fedq, hook: str, service: Service) -> None:
    assert "last delivery: none yet" in fedq("webhook", "show", hook).out
    write(service.database, webhook_deliveries.ping, hook)
    conclude(service.database, claim_delivery(service.database), BAD)
    shown = fedq("webhook", "show", hook).out
    assert "failing since" in shown
    assert "last delivery: pending at" in shown
    assert "the answer was 500; next attempt at" in shown
    write(service.database, webhook_deliveries.ping, hook)
    conclude(service.database, claim_delivery(service.database), GOOD)
    assert "last delivery: delivered at" in fedq("webhook", "show", hook).out


def test_a_ping_shows_what_came_of_it(fedq: Fedq, hook: str, service: Service) -> None:
    def sent(answer: ReceiverResponse) -> bool:
        claimed = write(service.database, webhook_deliveries.claim_due, 60.0)
        if claimed is not None:
            conclude(service.database, claimed, answer)
        return claimed is not None

    for answer, code, outcome in ((GOOD, 0, "delivered at"), (BAD, 1, "the answer was 500")):
        # As a dispatcher would, while the command looks.
        with ThreadPoolExecutor(1) as dispatcher:
            sending = dispatcher.submit(eventually, lambda answer=answer: sent(answer))
            pinged = fedq("webhook", "ping", hook)
            sending.result()
        assert (pinged.code, outcome in pinged.out) == (code, True)


def test_a_webhook_that_is_not_there_cannot_be_deleted(fedq: Fedq, service: Service) -> None:
    record, _ = write(service.database, webhooks.create, owner="local", url=URL)
    assert [fedq("webhook", "delete", record.id).code for _ in range(2)] == [0, 4]


def test_the_client_makes_and_edits_and_says_what_is_wrong(client: Client, hook: str) -> None:
    with pytest.raises(InvalidRequestError, match="FEDQ_WEBHOOK_NETWORKS"):
        client.webhooks.create("https://[::1]/", ["run.failed"], name="x")
    assert client.webhooks.edit(hook, name="thesis").name == "thesis"
    assert client.webhooks.get(hook).id in [one.id for one in client.webhooks.list()]
