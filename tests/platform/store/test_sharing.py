"""Access to what others own: one table for all kinds, and no use of an upload without an owner."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import Parameter, getmembers, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import select

from fedcore.errors import ForbiddenError, ResourceNotFoundError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, bundles, datasets, experiments, keys, sharing
from fedcore.platform.store import weights as networks
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.sharing import Access, Owned
from fedcore.platform.store.tables import GrantRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.platform.store.weights import WEIGHTS
from tests.builders.experiments import submit
from tests.builders.transactions import on_postgresql, read, write
from tests.platform.store.test_bundles import bundle, weights
from tests.platform.store.test_datasets import keep

STORE = Path(sharing.__file__).parent
Deletion = Callable[[Database, Any], None]
KINDS: dict[str, tuple[Callable[[Database], Owned], Deletion]] = {
    "experiment": (
        lambda database: submit(database, owner="ann"),
        lambda database, record: write(database, experiments.delete, record.id),
    ),
    "data set": (keep, lambda database, record: write(database, DATASETS.delete, record.id, "ann")),
    "bundle": (
        bundle,
        lambda database, record: write(database, bundles.BUNDLES.delete, record.digest, "ann"),
    ),
    "weights": (weights, lambda database, record: write(database, WEIGHTS.delete, record.digest, "ann")),
}
WITHOUT_OWNER = {
    "create": "returns what its owner has",
    "new_id": "finds nothing",
    "note_use": "records what `use` has found",
    "prune": "deletes what nobody uses",
    "release": "deletes what its owner no longer uses",
    "used_by": "finds what `use` has recorded",
}
"""Functions of uploads that need no owner, and why."""


@pytest.mark.parametrize("kind", KINDS)
def test_access_ends_with_what_it_is_to(database: Database, kind: str) -> None:
    make, delete = KINDS[kind]
    record, other = make(database), submit(database, name="other", owner="ann")
    for shared in (record, other):
        rights = write(database, sharing.share, shared, read=["ben", "eve"], write=["eve"])
        assert rights == {"ben": Access.READ, "eve": Access.WRITE}
    assert read(database, sharing.access_of, record.id, "ann", "ben") is Access.READ
    delete(database, record)
    with database.reading() as session:
        assert set(session.scalars(select(GrantRecord.resource_id))) == {other.id}
    with pytest.raises(ResourceNotFoundError):
        write(database, sharing.share, record, read=["ben"])


@pytest.mark.parametrize("kind", ["data set", "bundle", "weights"])
def test_only_the_owner_deletes(database: Database, kind: str) -> None:
    record: Any = KINDS[kind][0](database)
    deletions: dict[str, Callable[[str | None], None]] = {
        "data set": lambda owner: write(database, DATASETS.delete, record.id, owner),
        "bundle": lambda owner: write(database, bundles.BUNDLES.delete, record.digest, owner),
        "weights": lambda owner: write(database, WEIGHTS.delete, record.digest, owner),
    }
    write(database, sharing.share, record, read=["ben"])
    with pytest.raises(ForbiddenError, match="ann"):
        deletions[kind]("ben")
    with pytest.raises(ResourceNotFoundError):
        deletions[kind]("eve")
    deletions[kind](None)


def test_a_user_is_whoever_owns_a_valid_key(database: Database) -> None:
    record = submit(database, owner="ann")
    with database.transaction() as session:
        for name in ("ben", "eve"):
            keys.create(session, owner=name, scope=Scope.READ)
        gone, _ = keys.create(session, owner="gone", scope=Scope.READ)
        keys.revoke(session, gone.id)
        sharing.share(session, record, read=["left"])
        names = ["ben", "eve", "gone", "left", "nobody", "Ben"]
        assert sharing.unknown_users(session, record.id, names) == {"gone", "nobody", "Ben"}


def test_a_name_that_is_given_has_the_right_that_it_is_given_whatever_it_had(database: Database) -> None:
    record = submit(database, owner="ann")

    def shared(**given: list[str]) -> dict[str, Access]:
        return write(database, sharing.share, record, **given)

    shared(read=["ben"], write=["dan", "eve"])
    assert shared(read=["dan"]) == {"dan": Access.READ, "eve": Access.WRITE}
    assert shared(write=["dan"]) == {"dan": Access.WRITE}
    assert shared(read=["dan"], write=["dan"]) == {"dan": Access.WRITE}
    assert shared(read=["dan"], write=[]) == {"dan": Access.READ}


@on_postgresql
def test_two_who_share_at_the_same_time_wait_for_each_other(database: Database) -> None:
    record = keep(database)
    with ThreadPoolExecutor(4) as sharers:
        list(sharers.map(lambda name: write(database, sharing.share, record, read=[name]), "abcdefgh"))
    assert len(read(database, sharing.shares, record.id)) == 1


def functions_of_uploads() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions that are given a session."""
    places: list[ModuleType | type] = [datasets, bundles, networks, Uploads]
    for place in places:
        for name, function in getmembers(place, isfunction):
            own = place is Uploads or function.__module__ == place.__name__
            if own and not name.startswith("_") and "session" in signature(function).parameters:
                yield name, function


def test_queries_that_find_an_upload_cannot_be_called_without_an_owner() -> None:
    found = list(functions_of_uploads())
    asked = {"find", "find_if_any", "find_same", "is_at_hand", "page", "delete", "use", "check_use"}
    assert {name for name, _ in found} == asked | WITHOUT_OWNER.keys()
    for name, function in found:
        if name in asked:
            owner = signature(function).parameters["owner"]
            assert owner.default is Parameter.empty, f"{function.__module__}.{name}"


def test_no_other_module_reads_the_tables_of_uploads() -> None:
    """Quotas sum up bytes, and a restored copy is held to its files; all other queries are those above."""
    named = re.compile(r"\b(Dataset|Bundle|Weights|Upload)(Use)?Record\b")
    reading = {file.stem for file in STORE.glob("*.py") if named.search(file.read_text())}
    others = {"tables", "sharing", "quotas", "dump"}
    assert reading == {"datasets", "uploads", "bundles", "weights"} | others
