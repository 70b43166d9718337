"""Which code this is."""

import subprocess
from pathlib import Path

import pytest

from fedcore.platform import version
from fedcore.settings import settings


def _git(tree: Path, *arguments: str) -> str:
    named = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *named, *arguments], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    _git(tmp_path, "add", "code.py")
    _git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_the_commit_of_a_checkout_is_known_and_whether_it_was_changed(checkout: Path) -> None:
    head = _git(checkout, "rev-parse", "HEAD")
    assert version.commit_of(checkout) == head
    (checkout / "notes.txt").write_text("not of the code\n")
    assert version.commit_of(checkout) == head
    (checkout / "code.py").write_text("2\n")
    assert version.commit_of(checkout) == f"{head}+changes"


def test_a_folder_within_somebody_elses_repository_has_no_commit(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert version.commit_of(checkout / "site-packages") is None


def test_without_a_repository_or_git_there_is_no_commit(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version.commit_of(tmp_path / "gone") is None
    monkeypatch.setenv("PATH", "")
    assert version.commit_of(checkout) is None


def test_an_installation_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQ_COMMIT", "1f0c7a5")
    settings.cache_clear()
    version.find_commit.cache_clear()
    try:
        assert version.find_commit() == "1f0c7a5"
    finally:
        settings.cache_clear()
        version.find_commit.cache_clear()
