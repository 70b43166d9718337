"""The client and the command line alone: nothing else of what FedQ depends on can be imported."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from deploy.requirements import requirements
from fedq.cli.terminal import EXTRAS
from tests.support.service import Service

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"[A-Za-z0-9._-]+")

ALONE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
from fedq.cli import main

for line in {commands!r}:
    try:
        main(line)
    except SystemExit as ended:
        print("@", " ".join(line[:2]), ended.code, flush=True)
        print("@", " ".join(line[:2]), ended.code, file=sys.stderr, flush=True)
"""


def _name(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _needed(names: list[str]) -> Iterator[str]:
    """Distributions, and what they need; extras left out."""
    seen: set[str] = set()
    while names:
        if (name := names.pop()) in seen:
            continue
        seen.add(name)
        yield name
        try:
            names += [_name(needed) for needed in metadata.requires(name) or () if "extra ==" not in needed]
        except metadata.PackageNotFoundError:
            continue


@pytest.fixture(scope="module")
def refused() -> set[str]:
    """The modules of all distributions but FedQ and what its base dependencies need."""
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = {"fedq", *_needed([_name(requirement) for requirement in base])}
    owners = metadata.packages_distributions()
    return {module for module, names in owners.items() if not {_name(name) for name in names} & needed}


@pytest.mark.slow
def test_commands_work_alone_and_those_that_cannot_name_the_extra(
    service: Service, refused: set[str], tmp_path: Path
) -> None:
    assert {"torch", "numpy", "pandas", "fastapi", "sqlalchemy"} <= refused
    spec = "--set=rounds=1", "--set=seeds=[0]"
    commands = {
        ("--help",): 0,
        ("submit", "--preset", "demo", *spec): 0,
        ("plan", "--preset", "demo", *spec): 0,
        ("validate", str(ROOT / "docs" / "nothing.yaml")): 2,
        ("status", "--json"): 0,
        ("presets",): 0,
        ("catalogue",): 0,
        ("workers",): 0,
        ("backup", str(tmp_path / "backup")): 2,
        ("up", "--home", str(tmp_path / "home")): 2,
    }
    program = ALONE.format(refused=refused, commands=[list(command) for command in commands])
    environment = os.environ | {
        "FEDQ_URL": service.url,
        "FEDQ_API_KEY": service.key,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    codes = [line.rpartition(" ")[2] for line in ended.stdout.splitlines() if line.startswith("@")]
    assert codes == [str(code) for code in commands.values()], ended.stderr
    told = ended.stderr.split("@")
    assert "pip install 'fedq[service]'" in told[-3]
    assert "pip install 'fedq[all]'" in told[-2]


def test_the_extras_bring_what_is_said_to_be_missing() -> None:
    owners = metadata.packages_distributions()
    of_the_service = {"api", "migrations", "workers"}
    for extra, modules in EXTRAS.items():
        brought = set(_needed([_name(requirement) for requirement in requirements("fedq", [extra])]))
        for module in (one for one in modules if one.partition(".")[0] not in of_the_service):
            assert {_name(name) for name in owners.get(module, [module])} & brought, (extra, module)
