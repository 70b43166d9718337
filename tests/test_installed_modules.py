"""Modules of a bundle that have the name of installed ones: edited copies take their place, libraries
stay.
"""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from fedcore.bundles import load
from fedcore.errors import ExtensionError
from tests.extensions.distributions import environment, install

RULES = """
    from typing import Literal

    from fedcore.algorithms.fedavg import FedAvg


    class Mine(FedAvg):
        '''FedAvg by another name.'''

        kind: Literal["mine"] = "mine"
        version: str = "{version}"
        '''Where it is from.'''
"""
LOADED = """
    import json, sys
    from pathlib import Path

    from fedcore import bundles
    from fedcore.packages import installed_packages
    from fedcore.spec.components import FAMILIES

    {before}
    found = bundles.load(Path(sys.argv[1]), {{name: family.base for name, family in FAMILIES.items()}})
    (mine,) = found["algorithms"].values()
    kinds = [kind for kind in FAMILIES["algorithms"].kinds() if "/" in kind]
    print(json.dumps([mine().version, kinds, [str(one) for one in installed_packages()]]))
"""
USED = 'list(FAMILIES["algorithms"])'


def copy_of_package(folder: Path) -> Path:
    """A bundle whose package `ourlab` is an edited copy of an installed one."""
    package = folder / "copy" / "ourlab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rules.py").write_text(dedent(RULES.format(version="edited")))
    return package.parent


def loaded(bundle: Path, *installed: Path, before: str = "") -> Any:
    """The component of a bundle in a fresh interpreter, and the kinds and packages left beside it."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(LOADED).format(before=before), str(bundle)],
        check=False,
        env=environment(*installed),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def install_rules(folder: Path) -> Path:
    entries = {"fedq.algorithms": "mine = ourlab.rules:Mine"}
    install(folder, "ourlab-rules", entries, rules=RULES.format(version="installed"))
    return folder


@pytest.mark.parametrize("before", ["", USED], ids=["not loaded before", "loaded before"])
def test_an_edited_copy_takes_the_place_of_the_installed_package(tmp_path: Path, before: str) -> None:
    installed = install_rules(tmp_path / "installed")
    found = loaded(copy_of_package(tmp_path), installed, before=before)
    # The kind `ourlab/mine` means the installed code, so it is not there.
    assert found == ["edited", [], []]


def test_packages_that_require_the_replaced_one_are_gone_and_others_stay(tmp_path: Path) -> None:
    installed = [install_rules(tmp_path / "installed")]
    for name, needs in (("uses", "Requires-Dist: ourlab.rules>=1; python_version > '3'\n"), ("other", "")):
        folder = tmp_path / name
        entries = {"fedq.algorithms": f"mine = {name}.rules:Mine"}
        install(folder, f"lab-{name}", entries, rules=RULES.format(version=name))
        (folder / "ourlab").rename(folder / name)
        metadata = folder / f"lab_{name}-1.2.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text() + needs)
        installed.append(folder)
    found = loaded(copy_of_package(tmp_path), *installed)
    assert found == ["edited", ["other/mine"], ["lab-other 1.2"]]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("json", "is Python's own"),
        ("this", "is Python's own"),
        ("workers", "is FedQ's own"),
        ("numpy", r"FedQ or a library that it uses may import \(from numpy\)"),
        ("networkx", r"FedQ or a library that it uses may import \(from networkx\)"),
        ("deploy", "FedQ has loaded"),
    ],
)
def test_a_module_that_fedq_needs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    (tmp_path / f"{module}.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "deploy", sys.modules["tests"])
    before = sys.modules.copy()
    with pytest.raises(ExtensionError, match=f"the module {module} cannot .* which {said}; rename"):
        load(tmp_path, {})
    assert sys.modules == before


def test_a_folder_beside_others_of_a_namespace_takes_the_place_of_none(tmp_path: Path) -> None:
    (tmp_path / "installed" / "shared").mkdir(parents=True)
    (tmp_path / "installed" / "shared" / "other.py").write_text("VALUE = 'installed'")
    package = tmp_path / "bundle" / "shared"
    package.mkdir(parents=True)
    own = "from shared.other import VALUE\n" + dedent(RULES.format(version="own"))
    (package / "rules.py").write_text(own)
    assert loaded(package.parent, tmp_path / "installed")[0] == "own"
