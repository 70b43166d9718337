"""`fedq edit` and `fedq share`: notes, stars, the archive, and access of other users."""

import json
from pathlib import Path

from fedq.client import Client
from fedq.schemas import KeyRequest
from tests.builders.specifications import TINY
from tests.fedq.cli.conftest import Fedq, fedq

__all__ = ["fedq"]


def test_edited_and_shared_experiments_are_listed_and_shown(
    fedq: Fedq, client: Client, tmp_path: Path
) -> None:
    id, file = client.submit(TINY).id, tmp_path / "notes.md"
    run = client.runs(id)[0].id
    file.write_text("Momentum **helps**.")
    assert fedq("edit", id, "--notes", str(file), "--star", "--tag", "new").code == 0
    found = client.experiment(id)
    assert (found.notes, found.starred, found.tags) == ("Momentum **helps**.", True, ["new"])
    assert "Momentum **helps**." in fedq("status", id).out
    assert json.loads(fedq("edit", run, "--notes", str(file), "--json").out)["notes"] == found.notes
    assert [item["id"] for item in json.loads(fedq("list", "--starred", "--json").out)] == [id]
    assert fedq("edit", id, "--archive", "--unstar").code == 0
    assert json.loads(fedq("list", "--json").out) == []
    assert [item["id"] for item in json.loads(fedq("list", "--archived", "--json").out)] == [id]
    assert list(client.experiments(archived=True, starred=True)) == []
    for given in ((id,), (run, "--star")):
        assert fedq("edit", *given).code == 2
    for name in ("ben", "eve"):
        client.create_key(KeyRequest(owner=name))
    told = fedq("share", id, "--read", "ben", "--write", "eve")
    lines = [line.split() for line in told.out.splitlines() if line.strip()]
    assert (told.code, lines[-2:]) == (0, [["eve", "write"], ["ben", "read"]])
    assert json.loads(fedq("share", id, "--json").out)["read"] == ["ben"] == client.access(id).read
    assert json.loads(fedq("share", id, "--private", "--json").out)["write"] == []
    assert fedq("share", id, "--private", "--read", "ben").code == 2
