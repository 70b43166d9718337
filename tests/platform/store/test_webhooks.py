"""Webhooks: whose they are, how many there may be, and where their secrets are."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from fedcore.errors import QuotaError, ResourceNotFoundError
from fedcore.platform.store import Database, lifecycle, webhook_deliveries, webhooks
from tests.builders.experiments import submit
from tests.builders.transactions import read, write
from tests.builders.webhooks import (
    URL,
    claim_delivery,
    create_webhook,
    pending_deliveries,
    pending_kinds,
    webhook_now,
)


def test_a_secret_is_given_out_when_it_is_made_and_to_whoever_signs_and_is_not_loaded_otherwise(
    database: Database,
) -> None:
    record, secret = write(database, webhooks.create, owner="ann", url=URL, most=1)
    found = read(database, webhooks.find, record.id)
    listed = read(database, webhooks.page).items[0]
    for one in (found, listed):
        with pytest.raises(SQLAlchemyError):
            _ = one.secret
    write(database, webhook_deliveries.ping, record.id)
    claimed = claim_delivery(database)
    assert claimed.secret == secret
    assert secret not in repr(claimed)


def test_an_owner_has_as_many_as_there_may_be_and_others_are_not_counted(database: Database) -> None:
    for owner in ("ann", "bob"):
        write(database, webhooks.create, owner=owner, url=URL, most=1)
    with pytest.raises(QuotaError, match="the limit is 1"):
        write(database, webhooks.create, owner="ann", url=URL, most=1)
    assert len(read(database, webhooks.page, owner="ann").items) == 1
    assert len(read(database, webhooks.page).items) == 2


def test_webhooks_of_others_are_not_there(database: Database) -> None:
    hook = create_webhook(database, owner="ann")
    assert (
        read(database, webhooks.find, hook.id, "ann").id
        == read(database, webhooks.find, hook.id, None).id
        == hook.id
    )
    for act in (
        lambda session: webhooks.find(session, hook.id, "bob"),
        lambda session: webhooks.find(session, "whk_0"),
    ):
        with pytest.raises(ResourceNotFoundError, match="there is no webhook"):
            read(database, act)


@pytest.mark.parametrize("act", [webhooks.enable, webhooks.delete, webhooks.edit])
def test_missing_webhooks_cannot_be_changed(database: Database, act: Callable[..., Any]) -> None:
    with pytest.raises(ResourceNotFoundError):
        write(database, act, "whk_0")


def test_a_disabled_webhook_drops_what_it_was_to_be_told_and_says_why(database: Database) -> None:
    hook = create_webhook(database)
    experiment = submit(database)
    write(database, webhooks.disable, hook.id, "its owner is on holiday")
    write(database, webhooks.disable, hook.id, "another reason")
    assert pending_deliveries(database, hook) == []
    assert webhook_now(database, hook).disabled_reason == "its owner is on holiday"
    write(database, webhooks.enable, hook.id)
    assert webhook_now(database, hook).disabled_at is None
    write(database, lifecycle.cancel, experiment.id)
    assert pending_kinds(database, hook) == ["run.cancelled", "experiment.cancelled"]


def test_with_a_webhook_goes_what_it_was_told(database: Database) -> None:
    hook = create_webhook(database)
    submit(database)
    write(database, webhooks.delete, hook.id)
    assert not read(database, webhook_deliveries.any_due)
    assert pending_deliveries(database, hook) == []
