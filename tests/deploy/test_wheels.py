"""The wheels `fedq` and `fedq-service`, built and installed in fresh environments."""

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from deploy.requirements import PROJECTS, requirements
from tests.builders.specifications import QUADRATIC
from tests.deploy.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS.values():
        _succeeds(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
            (ROOT / project).parent,
        )
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


def test_both_distributions_and_what_they_require_of_each_other_have_one_version() -> None:
    projects = [tomllib.loads((ROOT / project).read_text())["project"] for project in PROJECTS.values()]
    (version,) = {project["version"] for project in projects}
    for project in projects:
        extras = project["optional-dependencies"].values()
        named = [
            Requirement(line) for line in (*project["dependencies"], *(one for e in extras for one in e))
        ]
        others = [one for one in named if one.name in PROJECTS and one.name != project["name"]]
        assert others
        assert {str(one.specifier) for one in others} == {f"=={version}"}


def test_the_client_contains_nothing_of_the_service(wheels: dict[str, Path]) -> None:
    assert _contents(wheels["fedq"]) == {"fedq", "fedcore"}
    assert _contents(wheels["fedq_service"]) == {"api", "workers", "migrations"}


def test_an_editable_service_refers_to_the_clone(tmp_path: Path) -> None:
    program = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    _succeeds([sys.executable, "-c", program, tmp_path], ROOT / "deploy" / "service")
    (wheel,) = tmp_path.glob("*.whl")
    (path,) = _contents(wheel)
    assert Path(ZipFile(wheel).read(path).decode()) == ROOT


def test_every_tracked_file_is_in_one_of_the_wheels(wheels: dict[str, Path]) -> None:
    packed = {name for wheel in wheels.values() for name in ZipFile(wheel).namelist()}
    folders = ("fedq", "fedcore", "api", "workers", "migrations")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert {name for name in packed if ".dist-info/" not in name} == wanted


def test_the_client_works_in_a_project_with_folders_named_like_those_of_the_service(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    python = _environment(
        tmp_path / "environment", [wheels["fedq"]], _linked(requirements("fedq", ()), tmp_path / "libraries")
    )
    project = tmp_path / "project"
    for name in ("api", "workers", "migrations"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("OURS = True\n")
    (project / "experiment.yaml").write_text(json.dumps(QUADRATIC))
    program = """
import api, workers, migrations
from fedq import AsyncClient, Client, ExperimentSpec
from importlib.util import find_spec
assert api.OURS and workers.OURS and migrations.OURS
assert not any(map(find_spec, ("torch", "scipy", "sqlalchemy", "fastapi", "celery")))
print(Client.__module__, AsyncClient.__module__, ExperimentSpec.__module__)
"""
    assert "fedq.client" in _succeeds([python, "-c", program], project)
    fedq = python.with_name("fedq")
    assert "quadratic: 1 run" in _succeeds([fedq, "plan", "experiment.yaml"], project)
    for command in ("up", "demo"):
        refused = _run([fedq, command], project)
        assert refused.returncode == 2
        assert "pip install 'fedq[all]'" in refused.stderr


COMPARISON = """
name: mine against FedAvg
problem:
  dataset: {kind: digits}
  partition: {kind: dirichlet, clients: 10, alpha: 0.5}
  model: {kind: logistic}
local: {lr: 0.1, epochs: 1, batch_size: 10}
participation: {kind: uniform, clients_per_round: 4}
algorithm: {kind: fedavg}
rounds: 4
seeds: [0, 1, 2]
sweep:
  algorithm: [{kind: fedavg}, {kind: slow}]
"""


@pytest.mark.nightly
def test_a_newcomer_writes_checks_submits_and_reproduces_an_algorithm(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    everything = Path(str(metadata.distribution("numpy").locate_file("")))
    python = _environment(tmp_path / "environment", [*wheels.values()], everything)
    names = "api, fedcore, fedq, migrations, workers"
    program = f"import {names}; print(*(module.__path__[0] for module in ({names})))"
    for place in _succeeds([python, "-c", program], tmp_path).split():
        assert Path(place).is_relative_to(tmp_path / "environment")
    fedq, home = python.with_name("fedq"), {"FEDQ_HOME": str(tmp_path / "home")}
    assert "slow" in _succeeds([fedq, "new", "algorithm", "slow"], tmp_path, **home)
    (module,) = (path for path in (tmp_path / "slow").glob("*.py") if not path.name.startswith("test_"))
    _edit(module)
    checked = _succeeds([fedq, "check-extension", "slow"], tmp_path, **home)
    assert "algorithms/slow" in checked
    assert "failed" not in checked
    (tmp_path / "experiment.yaml").write_text(COMPARISON)
    command = [fedq, "up", "--port=0", "--workers=1", "--json"]
    with subprocess.Popen(
        list(map(str, command)), cwd=tmp_path, env=_settings(**home), stdout=subprocess.PIPE, text=True
    ) as stack:
        try:
            assert stack.stdout
            service = home | {"FEDQ_URL": json.loads(stack.stdout.readline())["url"]}
            submit = [fedq, "submit", "experiment.yaml", "--code", "slow", "--wait", "--json"]
            results = json.loads(_succeeds(submit, tmp_path, **service))
            mine = results["arms"][1]
            assert mine["name"] == "slow"
            # A tenth of each step: fewer samples are right after the same rounds, with every seed.
            difference = mine["metrics"]["test_accuracy"]["final_difference"]
            assert difference["verdict"] == "worse"
            reproduced = _run([fedq, "reproduce", results["experiment_id"]], tmp_path, **service)
            assert reproduced.returncode == 0, reproduced.stderr
            assert "identical (6 runs" in reproduced.stdout
        finally:
            stack.terminate()


def _edit(module: Path) -> None:
    """The ten lines that the newcomer writes: a rule that takes a tenth of each step."""
    text = module.read_text()
    start, end = text.index("    def direction"), text.index("class ", text.index("    def direction"))
    module.write_text(
        text[:start]
        + "    def direction(self, grad: torch.Tensor, y: torch.Tensor, context: ClientContext)"
        + " -> torch.Tensor:\n        return grad / 10\n\n\n"
        + text[end:]
    )


def _contents(wheel: Path) -> set[str]:
    tops = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    return {name for name in tops if not name.endswith(".dist-info")}


def _environment(folder: Path, wheels: Sequence[Path], libraries: Path) -> Path:
    """The Python of a new environment with these wheels, and with these libraries."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    options = ("--python", python, "--no-deps", "--no-index", "--no-cache")
    _succeeds([sys.executable, "-m", "uv", "pip", "install", *options, *wheels], folder)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "libraries.pth").write_text(f"{libraries}\n")
    return python


def _linked(needed: Iterable[str], folder: Path) -> Path:
    """Links to the installed files of these requirements, and of what they require."""
    folder.mkdir()
    names, seen = [Requirement(line).name for line in needed], set[str]()
    while names:
        if (name := names.pop()) in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        required = map(Requirement, distribution.requires or ())
        names += [one.name for one in required if not one.marker or one.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(distribution.locate_file(top)))
    return folder


def _settings(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDQ_", "PYTHON"))}
    return kept | settings


def _run(command: Sequence[object], folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=folder, env=_settings(**settings), capture_output=True, text=True, check=False
    )


def _succeeds(command: Sequence[object], folder: Path, **settings: str) -> str:
    ended = _run(command, folder, **settings)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
