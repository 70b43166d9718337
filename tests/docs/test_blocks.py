"""Examples in README.md and docs/ run, with the output that is shown."""

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcore import ExperimentSpec, Simulation
from fedcore.platform import local_credentials
from fedcore.settings import settings
from tests.data.image_files import write_cifar10, write_mnist
from tests.docs.carrying import ROOT, Desk, blocks, languages, specifications
from tests.docs.expected import matched
from tests.docs.shell import Shell
from tests.support.commands import started, url_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETTINGS = {
    "FEDQ_DATA_DIR": "data",
    "FEDQ_MODELS_ALLOWED": "ourlab.networks:*",
    "FEDQ_WEBHOOK_NETWORKS": "127.0.0.0/8",
}
"""Prerequisites of the pages; images of noise replace MNIST's, in its file format."""
RUNNABLE = {"console", "python"}
IN_CI = {"README"}
"""Pages whose commands are run before each change; those of the others are run every night."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `fedq up` runs."""
    folder = tmp_path_factory.mktemp("docs")
    write_mnist(folder / "data", train=20_000)
    shutil.copytree(ROOT / "docs/examples", folder, dirs_exist_ok=True)
    given = {name.removeprefix("FEDQ_").lower(): value for name, value in SETTINGS.items()}
    # What a second worker does for a second time is to load its libraries.
    with started(folder, "workers.embedded.supervisor", "--port=0", "--workers=1", **given):
        url_of(folder)
        yield folder


def environment(place: Path) -> dict[str, str]:
    """That of a user's terminal in `place`."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FEDQ_URL": url_of(place),
        "FEDQ_API_KEY": local_credentials.load(place / ".fedq") or "",
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "FEDQ_DATA_DIR": "data",
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("FEDQ_")} | own


@pytest.fixture
def ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a user in `place`, of this process too."""
    ours = environment(place)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place)
    settings.cache_clear()
    yield ours
    settings.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if page.stem in IN_CI else pytest.mark.nightly)
        for page in PAGES
        if languages(page) & RUNNABLE
    ],
)
def test_commands_and_code_of_a_page_can_be_carried_out(
    place: Path, ours: dict[str, str], page: Path
) -> None:
    with Shell(place, ours) as shell:
        desk = Desk(place, shell, _ports(ours["FEDQ_URL"]))
        for example in blocks(page, desk).examples():
            example.evaluate()


OF_THEIR_PAGE = re.compile(r"'(import|uploaded|weights|longer_steps)'")
"""Kinds and fields that need what another block of the page makes: the page's commands run these."""
SHOWN = [
    pytest.param(
        document,
        id=f"{page.stem}-{number}",
        marks=pytest.mark.nightly if page.stem == "language-models" else (),
    )
    for page in PAGES
    for number, document in enumerate(specifications(page))
    if not OF_THEIR_PAGE.search(str(document))
]


@pytest.mark.parametrize("document", SHOWN)
def test_a_specification_that_a_page_shows_trains(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path, train=20_000)
    write_cifar10(tmp_path, monkeypatch, train=400)
    for name in ("first_half", "second_half"):
        (tmp_path / f"{name}.txt").write_text("First Citizen:\nBefore we proceed, hear me speak.\n\n" * 60)
    spec = ExperimentSpec.model_validate(document)
    report = Simulation(spec.arms()[0].spec, 0, data_dir=tmp_path).advance()
    assert report.local_steps
    assert not report.diverged


def _ports(url: str) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"8642": url.rpartition(":")[2].strip("/"), "8000": str(free.getsockname()[1])}


def test_links_of_the_readme_lead_somewhere() -> None:
    places = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert places
    assert all((ROOT / place).exists() for place in places)


def test_an_expectation_is_met_by_other_numbers_and_ids_and_by_nothing_else() -> None:
    there, here = "01m7zp3r3dcp3nethkx94frcqb", "01m80mdqt84nbndhcgwqg3re9z"
    expected = f"made exp_{there} in 1.5 s\n..."
    assert matched(expected, f"one moment\nmade  exp_{here} in 27 s\nand so on") == {there: here}
    assert matched(expected, f"made run_{here} in 27 s\n") is None
    assert matched(expected, f"lost exp_{here} in 27 s\n") is None
    assert matched(expected, f"made exp_{here} in no s\n") is None
