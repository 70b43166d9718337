"""docs/webhooks.md says what is so, and its receiver works."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from fedcore.platform.webhooks.events import PING, EventKind
from fedcore.platform.webhooks.protocol import new_secret, sign_message
from fedq.cli.app import GROUPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/webhooks.md").read_text()
SECRET = new_secret()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the receiver that the page shows, on any port that is free."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    made: list[ThreadingHTTPServer] = []
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    with monkeypatch.context() as patch:
        patch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: made.append(server))  # noqa: PLW0108 - a method is a function
        assert "8000" in code
        exec(code.replace("8000", "0"), {"__name__": "receiver"})
    (server,) = made
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_receiver_takes_what_is_signed_once_and_nothing_else(
    receiver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps(
        {"type": "experiment.succeeded", "timestamp": "2026-11-22T00:00:00Z", "data": {"name": "Zoë"}},
        ensure_ascii=False,
    )
    moment = datetime.now(UTC)
    genuine = sign_message("msg_1", moment, body, SECRET)
    foreign, old = (
        sign_message("msg_2", moment, body, new_secret()),
        sign_message("msg_3", moment - timedelta(minutes=10), body, SECRET),
    )
    another = sign_message("msg_4", moment, body, SECRET)
    answers = [
        httpx.post(
            receiver, content=body.encode(), headers=dict(headers), timeout=60, trust_env=False
        ).status_code
        for headers in (genuine, genuine, foreign, old, another)
    ]
    changed = httpx.post(
        receiver,
        content=body.replace("Zoë", "Zoe").encode(),
        headers=dict(genuine),
        timeout=60,
        trust_env=False,
    )
    assert (answers, changed.status_code) == ([204, 204, 401, 401, 204], 401)
    assert capsys.readouterr().out == "experiment.succeeded {'name': 'Zoë'}\n" * 2


def test_every_event_is_in_the_table() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+\.\w+)`", rows)) == {*EventKind, PING}


def test_commands_of_the_page_on_webhooks_exist() -> None:
    named = set(re.findall(r"fedq webhook (\w+)", PAGE))
    assert named
    assert named <= GROUPS["webhook"][2].keys()


def test_links_of_the_page_on_webhooks_lead_somewhere() -> None:
    for place in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / place).exists(), place
