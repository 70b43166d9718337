"""`fedq key` and `fedq me`."""

from contextlib import closing
from pathlib import Path

import pytest

from fedcore.platform.access import Token
from fedcore.platform.store import audit, keys, open_database
from fedcore.settings import settings
from tests.fedq.cli.conftest import Fedq
from tests.support.access import key_for
from tests.support.service import Service


def test_a_key_is_made_and_printed_alone_listed_used_and_revoked(fedq: Fedq) -> None:
    made = fedq("key", "create", "ann", "--name", "laptop", "--days", "90")
    assert made.code == 0
    key, key_id = made.out.strip(), Token.parse(made.out.strip()).key_id
    assert "not shown again" in made.err
    listed = fedq("key", "list").out
    assert key_id in listed
    assert key not in listed
    assert fedq("--key", key, "me").out.startswith(f"ann, key {key_id} of scope submit")
    assert "was revoked at" in fedq("key", "revoke", key_id).out
    refused = fedq("--key", key, "me")
    assert (refused.code, "was revoked" in refused.err) == (4, True)


def test_a_key_with_quotas_shows_what_is_left_of_them(fedq: Fedq) -> None:
    key = fedq("key", "create", "ann", "--set", "max_waiting_runs=7").out.strip()
    shown = fedq("--key", key, "me").out
    assert [line.split()[-2:] for line in shown.splitlines() if "queued and paused runs" in line] == [
        ["0", "7"]
    ]


def test_right_to_send_code_is_shown_wherever_the_scope_is(fedq: Fedq) -> None:
    made = {code: fedq("key", "create", "ann", *code) for code in ((), ("--code",))}
    ids = {code: Token.parse(answer.out.strip()).key_id for code, answer in made.items()}
    listed = fedq("key", "list").out.splitlines()
    for code, answer in made.items():
        edited = fedq("key", "edit", ids[code], "--set", "name=laptop").out.splitlines()
        for shown in (
            answer.err,
            fedq("--key", answer.out.strip(), "me").out.splitlines()[0],
            fedq("key", "show", ids[code]).out.splitlines()[0],
            next(line for line in listed if ids[code] in line),
            next(line for line in edited if "scope" in line),
        ):
            assert ("submit, code" in shown) is bool(code), shown


def test_the_quota_of_stored_bytes_is_one_of_all_uploads(fedq: Fedq) -> None:
    assert "stored bytes of uploads" in fedq("me").out


def test_an_option_holds_for_its_command_alone(fedq: Fedq, service: Service) -> None:
    other = key_for(str(service.database.url), "bob")
    assert fedq("--key", other, "me").out.startswith("bob, ")
    assert fedq("me").out.startswith("local, ")


def test_actions_a_key_does_not_allow_are_explained(fedq: Fedq) -> None:
    reading = fedq("key", "create", "ann", "--scope", "read").out.strip()
    refused = fedq("--key", reading, "submit", "--preset", "demo")
    assert (refused.code, "requires a key of scope `submit`" in refused.err) == (4, True)


def test_the_first_key_is_written_to_the_database_without_a_service(
    fedq: Fedq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDQ_URL", "http://127.0.0.1:1")
    settings.cache_clear()
    made = fedq("key", "create", "root", "--scope", "admin", "--direct")
    assert made.code == 0
    with closing(open_database(settings().database)) as database, database.reading() as session:
        record, _ = keys.verify(session, Token.parse(made.out.strip()))
        (entry,) = audit.page(session).items
    assert (record.owner, record.scope) == ("root", "admin")
    assert (entry.action, entry.target, entry.key_id) == ("fedq key create --direct", record.id, "")


def test_a_key_for_nobody_is_refused_either_way(fedq: Fedq) -> None:
    for direct in ([], ["--direct"]):
        refused = fedq("key", "create", "a b", *direct)
        assert refused.code == 2
        assert "owner" in refused.err


def test_the_audit_log_is_shown(fedq: Fedq) -> None:
    key_id = fedq("key", "create", "ann").out.strip()[3:29]
    assert "POST /v1/keys" in fedq("audit", "--target", f"key_{key_id}").out
    assert '"owner": "local"' in fedq("audit", "--limit", "1", "--json").out


def test_a_key_is_changed_and_shown_with_what_is_used(fedq: Fedq) -> None:
    key = fedq("key", "create", "ann", "--set", "max_running_runs=2", "--days", "9").out.strip()
    key_id = Token.parse(key).key_id
    changed = fedq(
        "key",
        "edit",
        key_id,
        "--set",
        "max_running_runs=4",
        "--set",
        "expires_at=null",
        "--set",
        "name=laptop",
    )
    assert changed.code == 0
    assert [
        line.split()[-1] for line in changed.out.splitlines() if "running" in line or "expires" in line
    ] == ["-", "4"]
    assert [
        line.split()[-2:] for line in fedq("key", "show", key_id).out.splitlines() if "running" in line
    ] == [["0", "4"]]
    refused = fedq("key", "edit", key_id, "--set", "max_running_runs=-4")
    assert (refused.code, "max_running_runs: " in refused.err) == (2, True)
    for name in ("model", "fields"):  # of no field, whatever arguments are called
        assert fedq("key", "edit", key_id, "--set", f"{name}=1").code == 2
    # As the service says it.
    misspelt = fedq("key", "edit", key_id, "--set", "max_runing_runs=4")
    assert (misspelt.code, "did you mean max_running_runs?" in misspelt.err) == (2, True)
