"""Code bundles in the database: one for each owner and content, kept while an experiment uses it."""

from typing import Any

import pytest

from fedcore.bundles import storage_key
from fedcore.errors import ResourceNotFoundError, SpecificationError, StateConflictError
from fedcore.platform.store import Database, bundles, experiments, removals, sharing
from fedcore.platform.store import weights as networks
from fedcore.platform.store.tables import BundleRecord, WeightsRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.platform.store.weights import WEIGHTS
from fedcore.spec.code import CodeBundle
from tests.builders.experiments import submit
from tests.builders.transactions import read, write

DIGEST = "sha256:" + "1" * 64


def bundle(database: Database, owner: str = "ann", digest: str = DIGEST) -> BundleRecord:
    """Store a bundle."""
    with database.transaction() as session:
        return bundles.BUNDLES.create(
            session,
            bundles.BUNDLES.new_id(session),
            digest,
            files=[{"name": "rules.py", "size": 3, "sha256": "0" * 64}],
            components={"algorithms": ["slow"]},
            size_bytes=10_240,
            owner=owner,
            key_id="",
        )


def weights(database: Database, owner: str = "ann", digest: str = DIGEST) -> WeightsRecord:
    """Store pretrained weights, which are kept as bundles are."""
    with database.transaction() as session:
        made = WEIGHTS.new_id(session)
        return WEIGHTS.create(
            session, made, digest, content="weights", tensors=2, size_bytes=80, owner=owner, key_id=""
        )


def used_by(database: Database, record: BundleRecord, owner: str = "ann", **fields: Any) -> str:
    """The id of an experiment that uses the bundle."""
    made = submit(database, owner=owner, **fields).id
    code = CodeBundle(digest=record.digest, id=record.id)
    write(database, bundles.use, made, code, owner)
    return made


def test_the_same_content_is_stored_once_for_each_owner(database: Database) -> None:
    first, again, others = bundle(database), bundle(database), bundle(database, "bob")
    assert first.id == again.id != others.id
    with database.reading() as session:
        assert bundles.BUNDLES.find(session, DIGEST, "bob").id == others.id
        with pytest.raises(ResourceNotFoundError):
            bundles.BUNDLES.find(session, DIGEST, "eve")


def test_a_bundle_is_deleted_with_the_last_experiment_that_uses_it(database: Database) -> None:
    record = bundle(database)
    first, last = used_by(database, record), used_by(database, record)
    with pytest.raises(StateConflictError, match=first):
        write(database, bundles.BUNDLES.delete, DIGEST, "ann")
    write(database, experiments.delete, first)
    with database.reading() as session:
        assert bundles.BUNDLES.find(session, DIGEST, "ann").id == record.id
    write(database, experiments.delete, last)
    with database.transaction() as session:
        with pytest.raises(ResourceNotFoundError):
            bundles.BUNDLES.find(session, DIGEST, "ann")
        assert [path for path, _ in removals.take(session, 10, 1.0)] == [storage_key(record.id, DIGEST)]


def test_bundles_in_use_are_never_pruned(database: Database) -> None:
    record = bundle(database)
    used_by(database, record)
    unused = bundle(database, digest="sha256:" + "2" * 64)
    assert write(database, bundles.BUNDLES.prune, -60.0) == 1
    with database.reading() as session:
        assert bundles.BUNDLES.find(session, record.digest, "ann").id == record.id
        with pytest.raises(ResourceNotFoundError):
            bundles.BUNDLES.find(session, unused.digest, "ann")


def test_an_experiment_cannot_use_a_bundle_that_is_gone_or_of_others(database: Database) -> None:
    record = bundle(database)
    with pytest.raises(SpecificationError, match="no code bundle"):
        used_by(database, record, owner="eve")
    write(database, bundles.BUNDLES.delete, DIGEST, "ann")
    with pytest.raises(SpecificationError, match="no code bundle"):
        used_by(database, record)


@pytest.mark.parametrize("kind", ["bundle", "weights"])
def test_shared_bundle_is_kept_until_it_no_longer_is_shared(database: Database, kind: str) -> None:
    """Its owner keeps it for others, and may have no experiment that uses it."""
    record = bundle(database) if kind == "bundle" else weights(database)
    kept: Uploads[Any] = bundles.BUNDLES if kind == "bundle" else WEIGHTS
    used = submit(database, owner="ann").id
    write(database, kept.note_use, used, [record.id])
    write(database, sharing.share, record, read=["bob"])
    write(database, experiments.delete, used)
    assert write(database, kept.prune, -60.0) == 0
    assert write(database, kept.find, DIGEST, "bob").id == record.id
    write(database, sharing.share, record, read=[])
    assert write(database, kept.prune, -60.0) == 1


def test_own_bundle_is_found_and_used_among_several_with_one_content(database: Database) -> None:
    anns, bobs, eves = (weights(database, owner) for owner in ("ann", "bob", "eve"))
    for record in (anns, eves):
        write(database, sharing.share, record, read=["bob", "joe"])
    found = [read(database, WEIGHTS.find, DIGEST, name).id for name in ("ann", "bob", "joe", "eve")]
    assert found == [anns.id, bobs.id, anns.id, eves.id]
    assert read(database, WEIGHTS.find, DIGEST, None, "eve").id == eves.id
    for owner, expected in (("bob", bobs), ("joe", anns)):
        made = submit(database, owner=owner).id
        write(database, networks.use, made, [DIGEST], owner)
        assert [used.id for used in read(database, networks.used_by, made)] == [expected.id]
