"""Shell completion."""

import pytest

from fedcore.settings import settings
from fedq.cli import connection, main
from fedq.client import Client
from tests.builders.specifications import TWO_ARMS
from tests.fedq.cli.conftest import Fedq


def _complete(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Completions that bash gets at the end of `line`."""
    monkeypatch.setenv("_FEDQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


def test_experiments_presets_and_arms_are_completed(
    fedq: Fedq, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    id = client.submit(TWO_ARMS).id
    assert id in _complete("fedq status exp_", monkeypatch, capsys)
    assert _complete("fedq watch other", monkeypatch, capsys) == []
    assert _complete("fedq submit --preset dem", monkeypatch, capsys) == ["demo"]
    assert _complete(f"fedq results {id} --baseline lr", monkeypatch, capsys) == ["lr=0.1", "lr=0.05"]
    assert "watch" in _complete("fedq wat", monkeypatch, capsys)
    assert _complete("fedq catalogue problem.p", monkeypatch, capsys) == ["problem.partition"]
    assert _complete("fedq submit --set algorithm.kind=fedav", monkeypatch, capsys) == [
        "algorithm.kind=fedavg",
        "algorithm.kind=fedavgm",
    ]
    assert _complete(f"fedq figure {id} --metric test_a", monkeypatch, capsys) == ["test_accuracy"]


def test_a_service_that_is_away_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQ_URL", "http://127.0.0.1:1")
    settings.cache_clear()
    assert connection.complete_experiments("") == []
    settings.cache_clear()
