"""Installation by `make` and by uv, and the oldest versions that it allows."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from deploy.requirements import PROJECTS, requirements
from tests.deploy.conftest import ROOT

AIMS = {
    "celery": "5.4",
    "fastapi": "0.115",
    "numpy": "1.26",
    "pandas": "2.2",
    "pydantic": "2.9",
    "rich": "13",
    "sqlalchemy": "2.0.30",
    "torch": "2.4",
}
"""Versions that clusters still have; a bound above needs a reason."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which nothing was installed, as far as `make` reads it."""
    for name in ("Makefile", "constraints.txt", "api/web/package.json", *map(str, PROJECTS.values())):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_demo_installs_the_embedded_service_and_nothing_else(clone: Path) -> None:
    (installed,) = _installed(clone, "demo")
    assert "--editable . --editable './deploy/service[embedded]'" in installed
    assert _installed(clone, "up") == [installed]
    assert "--torch-backend" not in installed
    names = {Requirement(line).name for line in requirements("fedq-service", ["embedded"])}
    assert not names & {"pandas", "polars", "playwright", "pytest", "snakemake", "mlflow-skinny"}


def test_the_tests_install_everything_at_once(clone: Path) -> None:
    (installed,) = _installed(clone, "test", "test-slow", "e2e", "check", "audit")
    assert "--editable '.[dev]' --editable ./deploy/service" in installed


def test_an_installation_for_tests_is_one_for_the_demo(clone: Path) -> None:
    (clone / ".venv").mkdir()
    for stamp in (".demo", ".development"):
        (clone / ".venv" / stamp).touch()
    assert not _installed(clone, "test", "demo")


def test_builds_of_pytorch_for_cpus_are_an_option_of_every_installation(clone: Path) -> None:
    for target in ("demo", "test"):
        (installed,) = _installed(clone, target, "TORCH=cpu")
        assert "--torch-backend cpu" in installed
    refused = _make(clone, "demo", "TORCH=rocm")
    assert refused.returncode == 2
    assert '"cpu" is the only choice' in refused.stderr


def test_uv_installs_what_the_demo_needs_from_the_clone() -> None:
    project, service = (_read(path) for path in PROJECTS.values())
    assert project["dependency-groups"][project["tool"]["uv"]["default-groups"][0]] == [
        "fedq-service[embedded]"
    ]
    (member,) = project["tool"]["uv"]["workspace"]["members"]
    assert ROOT / member / "pyproject.toml" == ROOT / PROJECTS["fedq-service"]
    assert project["tool"]["uv"]["sources"] == {"fedq-service": {"workspace": True}}
    assert service["tool"]["uv"]["sources"] == {"fedq": {"workspace": True}}


@pytest.mark.parametrize("name", AIMS)
def test_a_lower_bound_is_the_version_aimed_at_or_has_a_reason(name: str) -> None:
    lines = [
        line.strip()
        for project in PROJECTS.values()
        for line in (ROOT / project).read_text().splitlines()
        if re.match(rf'\s*"{name}(\[\w+\])?>=', line)
    ]
    assert lines
    for line in lines:
        _, stated, reason = re.fullmatch(r'"([^"]+?)>=([\d.]+)",(?: # (.+))?', line).groups()  # type: ignore[union-attr]
        assert stated == AIMS[name] or reason, f"{name} {AIMS[name]} is aimed at; say why {stated}"


def test_one_package_has_one_lower_bound() -> None:
    bounds: dict[str, set[str]] = {}
    for line in {*requirements("fedq", ["all", "data", "export", "otel", "timm"])}:
        one = Requirement(line)
        bounds.setdefault(one.name, set()).add(str(one.specifier))
    assert all(len(found) == 1 for found in bounds.values())
    assert all(found != {""} for found in bounds.values())


def test_the_page_on_installation_names_the_bounds() -> None:
    page = (ROOT / "docs/installation.md").read_text()
    told = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    assert told.keys() == AIMS.keys()
    bounds = {
        Requirement(line).name: Requirement(line).specifier
        for line in requirements("fedq", ["all", "data", "export", "otel", "timm"])
    }
    assert {name: f">={version}" for name, version in told.items()} == {
        name: str(bounds[name]) for name in told
    }


def test_ci_tests_each_python_that_is_claimed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    for project in (_read(path)["project"] for path in PROJECTS.values()):
        claimed = [
            found[1]
            for line in project["classifiers"]
            if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
        ]
        assert project["requires-python"] == f">={claimed[0]}"
        assert jobs["ci"]["strategy"]["matrix"]["python"] == claimed
    assert {"run": "make test-lowest"} in jobs["lowest"]["steps"]


def _installed(clone: Path, *arguments: str) -> list[str]:
    ended = _make(clone, *arguments)
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stdout.splitlines() if "uv pip install " in line]


def _make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    return subprocess.run(
        ["make", "--dry-run", *arguments], cwd=clone, env=kept, capture_output=True, text=True, check=False
    )


def _read(project: Path) -> dict[str, Any]:
    return tomllib.loads((ROOT / project).read_text())


# `make help` lists the targets that are described.


def test_help_lists_every_described_target() -> None:
    described = re.findall(r"^([^:\s]+):.*? ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "e2e" in described
    told = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[1] for line in told.stdout.splitlines()] == described
