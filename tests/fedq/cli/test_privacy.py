"""`fedq audit-privacy`, without a service."""

import json
from pathlib import Path

import pytest
import yaml

from fedq.cli import main
from tests.testing.privacy.test_coupled import BASE, private


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["audit-privacy", *arguments])
    return (ended.value.code, *capsys.readouterr())


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({**BASE, **private("client_level"), "rounds": 2}))
    return str(path)


def test_bounds_of_epsilon_are_printed_from_below_and_as_reported(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, file)
    assert code == 0
    assert "8 pairs of runs of 2 rounds: no value moved beyond its sensitivity" in out
    assert "epsilon: at least" in out
    assert "(99.9 %), reported 7.088, this test cannot show more than" in out
    assert "is private" not in out


def test_the_report_is_one_document(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, file, "--json", "--set", 'privacy={"kind": "local", "noise_multiplier": 1}')
    report = json.loads(out)
    assert (code, report["refuted"]) == (0, False)
    (arm,) = report["arms"]
    assert (arm["mechanism"], arm["guessed"], arm["violations"]) == ("local", None, [])


def test_a_specification_without_a_mechanism_is_refused(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = call(capsys, file, "--set", "privacy=null")
    assert code == 2
    assert "nothing to" in told


def test_a_combination_that_validation_refuses_is_not_audited(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = call(capsys, file, "--set", "algorithm.kind=scaffold")
    assert code == 2
    assert "/algorithm" in told
