"""Output of the embedded stack once it answers."""

import argparse
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from fedcore.platform import local_credentials
from fedq.client import Client
from tests.builders.specifications import TINY
from tests.support.commands import START_S
from tests.support.polling import eventually
from tests.workers.embedded_stacks import PROCESSES, RunningStack, running_stack
from tests.workers.impatient_supervisor import SILENT_S
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


# The embedded stack replaces a process that hangs, here by SIGSTOP, and leaves one alone that is slow.


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(Path(folder), "tests.workers.impatient_supervisor") as running,
    ):
        yield running


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_that_hangs_is_replaced_and_the_stack_works_again(stack: RunningStack, name: str) -> None:
    before = eventually(lambda: stack.pid(name))
    os.kill(before, signal.SIGSTOP)
    eventually(lambda: stack.replaced(name, before), START_S)
    assert not psutil.pid_exists(before)
    assert f"{name} hangs and is killed" in stack.log()
    with Client(stack.url, stack.key, patience_s=0, timeout_s=START_S) as client:
        experiment = client.submit(TINY)
        assert client.wait(experiment.id, timeout_s=START_S).status == "succeeded"


@pytest.mark.nightly
def test_a_slow_api_is_not_replaced(stack: RunningStack) -> None:
    before = eventually(lambda: stack.pid("api"))
    _answer(stack)
    end = time.monotonic() + 1.5 * SILENT_S
    while time.monotonic() < end:
        os.kill(before, signal.SIGSTOP)
        time.sleep(SILENT_S / 4)
        os.kill(before, signal.SIGCONT)
        _answer(stack)
    assert stack.pid("api") == before


def _answer(stack: RunningStack) -> None:
    assert httpx.get(f"{stack.url}/healthz", timeout=START_S, trust_env=False).is_success
