"""Output of the embedded stack once it answers."""

import argparse
import sys
import webbrowser
from pathlib import Path

import pytest

from fedcore.platform import local_credentials
from workers.embedded.supervisor import _announce

KEY = "fq_secret"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_link_with_the_key_is_shown_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    local_credentials.save(tmp_path, KEY)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for wanted in (False, True):
        _announce(
            "http://127.0.0.1:1", tmp_path, argparse.Namespace(open=wanted, ready_file=None, json=False)
        )
    printed = capsys.readouterr().out
    assert ("http://127.0.0.1:1/sign-in#fq_secret" in printed) is terminal
    assert (KEY in printed) is terminal
    assert "http://127.0.0.1:1/sign-in" in printed
    assert opened == ["http://127.0.0.1:1/sign-in#fq_secret"]
