"""`fedq share`: one command for experiments, data sets, code bundles and weights."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from fedq.client import AsyncClient, Client, InvalidRequestError, NotFoundError
from fedq.schemas import KeyRequest
from tests.builders.specifications import TINY
from tests.fedq.cli.conftest import Fedq
from tests.platform.store.test_bundles import DIGEST, bundle, weights
from tests.platform.store.test_datasets import keep
from tests.support.service import Service

WEIGHTS = "sha256:" + "2" * 64


@pytest.fixture
def shared(service: Service, client: Client) -> Iterator[list[str]]:
    """An experiment and an upload of each kind, as users name them; ben and eve have keys."""
    made = [client.create_key(KeyRequest(owner=name)) for name in ("ben", "eve")]
    own = "local"
    yield [
        client.submit(TINY | {"name": "to be shared"}).id,
        "to be shared",
        keep(service.database, owner=own).id,
        bundle(service.database, owner=own).digest,
        weights(service.database, owner=own, digest=WEIGHTS).digest,
    ]
    client.delete_bundle(DIGEST)
    client.delete_weights(WEIGHTS)
    for key in made:
        client.revoke_key(key.id)


def test_access_is_given_printed_and_taken_back(fedq: Fedq, client: Client, shared: list[str]) -> None:
    for name in shared:
        told = fedq("share", name, "--read", "ben", "--read", "eve")
        lines = [line.split() for line in told.out.splitlines() if line.strip()]
        assert (told.code, lines[-2:]) == (0, [["ben", "read"], ["eve", "read"]])
        assert json.loads(fedq("share", name, "--json").out) == {
            "owner": "local",
            "read": ["ben", "eve"],
            "write": [],
        }
        misspelt = fedq("share", name, "--read", "nobody_here")
        assert (misspelt.code, misspelt.out) == (2, "")
        assert "/read/0: there is no user 'nobody_here'" in misspelt.err
        assert client.access(name).read == ["ben", "eve"]
        assert json.loads(fedq("share", name, "--private", "--json").out)["read"] == []
    assert fedq("share", shared[2], "--write", "ben").code == 2
    assert fedq("share", "sha256:" + "3" * 64).code == 4
    assert fedq("share", "set_" + "0" * 26, "--private").code == 4


def test_both_clients_share_experiments_and_uploads(
    service: Service, client: Client, shared: list[str]
) -> None:
    async def share() -> list[list[str]]:
        async with AsyncClient(service.url, service.key) as calls:
            for name in shared:
                await calls.share(name, read=["ben"])
            return [(await calls.access(name)).read for name in shared]

    assert asyncio.run(share()) == [["ben"]] * len(shared)
    with pytest.raises(InvalidRequestError) as refused:
        client.share(shared[-1], read=["ben", "bem"])
    assert [flaw.pointer for flaw in refused.value.flaws] == ["/read/1"]
    for name in shared:
        assert client.share(name, read=[]).read == []
    with pytest.raises(NotFoundError):
        client.access("sha256:" + "3" * 64)


def test_owners_of_listed_uploads_are_said(fedq: Fedq, shared: list[str]) -> None:
    for group, name in zip(("data", "bundle", "weights"), shared[2:], strict=True):
        (line,) = [line for line in fedq(group, "list").out.splitlines() if name[:30] in line]
        assert "local" in line.split()
