"""`fedq new` and `fedq check-extension`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedq.cli import main
from fedq.scaffolding import FAMILIES, create
from tests.testing import wrong_algorithms

ROOT = Path(__file__).parents[3]


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return (ended.value.code, *capsys.readouterr())


def executed(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of its own process, as in a user's terminal."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=given, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each family."""
    folder = tmp_path_factory.mktemp("created")
    for family in FAMILIES:
        name = name_of(family)
        made = create(family, name, folder / name)
        assert {file.name for file in made} == {
            "pyproject.toml",
            "README.md",
            f"{name}.py",
            f"test_{name}.py",
        }
        assert len((folder / name / f"{name}.py").read_text().splitlines()) < 45
    return folder


def name_of(family: str) -> str:
    return f"my_{family.replace('-', '_')}"


@pytest.mark.nightly
def test_created_packages_pass_their_own_tests(created: Path) -> None:
    texts = {
        name: (created / name / f"test_{name}.py").read_text().lower().replace("_", "").replace(compact, "")
        for name in map(name_of, FAMILIES)
        for compact in [name.replace("_", "")]
    }
    # They differ in the name alone, and their checks are those of the next test.
    assert len(set(texts.values())) == 1
    tested = executed(
        created, "pytest", "-q", "-p", "no:cacheprovider", name_of("algorithm"), name_of("dataset")
    )
    assert tested.returncode == 0, tested.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=() if family == "dataset" else pytest.mark.nightly) for family in FAMILIES],
)
def test_a_created_package_passes_its_check(
    family: str, created: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = called(capsys, "check-extension", str(created / name_of(family)), "--json")
    assert code == 0, out
    report = json.loads(out)
    assert report["passed"]
    assert {component["kind"] for component in report["components"]} == {name_of(family)}


def test_a_package_with_the_kind_of_a_built_in_component_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = called(capsys, "new", "algorithm", "fedexp", "--json")
    assert code == 0
    assert json.loads(out)["files"][0] == "fedexp/pyproject.toml"


def test_files_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    code, _, told = called(capsys, "new", "algorithm", "mine")
    assert code == 2
    assert "mine exists; give another name, or another folder with --folder" in told
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("name", ["My", "a", "3d", "a-b", "class", "../up", "json"])
def test_a_name_that_is_not_suitable_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, told = called(capsys, "new", "algorithm", name)
    assert code == 2
    assert name in told
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_family_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = called(capsys, "new", "algorithms", "mine")
    assert code == 2
    assert "did you mean 'algorithm'?" in told


@pytest.mark.slow
def test_findings_name_the_line_and_end_with_1(tmp_path: Path) -> None:
    source = wrong_algorithms.ALGORITHMS["draws from PyTorch's generator"][1]
    (tmp_path / "wrong_rule.py").write_text(source + 'print("hello")\n')
    line = next(i for i, text in enumerate(source.splitlines(), 1) if text.endswith("# wrong"))
    checked = executed(tmp_path, "fedq.cli", "check-extension", ".", "--json")
    assert (checked.returncode, checked.stderr) == (1, "hello\n")
    document = json.loads(checked.stdout)
    assert not document["passed"]
    finding = next(
        each for each in document["findings"] if each["check"] == "the parts draw nothing globally"
    )
    assert finding["line"] == line
    assert Path(finding["file"]).name == "wrong_rule.py"
    assert finding["expected"].startswith("random numbers")


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = 1\ndef f(:\n", 2, "SyntaxError"),
        ("import json\n\nraise ValueError('no')\n", 3, "ValueError: no"),
        ("import not_there\n", 1, "No module named 'not_there'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_finding_with_its_line(
    text: str, line: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"broken_{line}.py").write_text(text)
    code, out, _ = called(capsys, "check-extension", str(tmp_path), "--json")
    assert code == 1
    (finding,) = json.loads(out)["findings"]
    assert (Path(finding["file"]).name, finding["line"]) == (f"broken_{line}.py", line)
    assert told in finding["found"]
    _, out, _ = called(capsys, "check-extension", str(tmp_path))
    assert f"{finding['file']}:{line}: {finding['check']}: expected {finding['expected']}" in out


def test_files_that_are_no_extension_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = called(capsys, "check-extension", "not_installed")
    assert code == 2
    assert "not_installed is neither a folder nor an installed package" in told
    (tmp_path / "nothing_in_it.py").write_text("x = 1\n")
    code, _, told = called(capsys, "check-extension", str(tmp_path))
    assert code == 2
    assert "defines no component" in told


@pytest.mark.nightly
def test_a_component_without_its_entry_point_is_a_finding(tmp_path: Path) -> None:
    executed(tmp_path, "fedq.cli", "new", "partition", "my_parts")
    project = tmp_path / "my_parts" / "pyproject.toml"
    project.write_text(project.read_text().replace('my_parts = "my_parts:MyParts"', ""))
    document = json.loads(executed(tmp_path, "fedq.cli", "check-extension", "my_parts", "--json").stdout)
    (finding,) = document["findings"]
    assert finding["expected"] == '[project.entry-points."fedq.partitions"] my_parts = "my_parts:MyParts"'
