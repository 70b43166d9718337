"""Packages that are installed beside FedQ are found by the bundles of a worker, wherever they lie."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore import bundles
from tests.builders.specifications import SYNTHETIC
from tests.extensions.distributions import environment, install
from tests.workers.confined.conftest import MINE, packed
from workers.confined.confinement import Confinement

pytestmark = pytest.mark.slow

PREPARE = """
import json, sys
from pathlib import Path

from fedcore.settings import Settings
from workers.confined import check

archive, document, confinement = Path(sys.argv[1]).read_bytes(), json.loads(sys.argv[2]), sys.argv[3]
settings = Settings(_env_file=None, code_confinement=confinement)
print(check.prepare(archive, document, settings).flaws)
"""


def flaws(tmp_path: Path, confinement: Confinement, archive: bytes, *kinds: str) -> str:
    """The errors in a specification with an arm for each kind, where `ourlab/mine` is installed."""
    installed, file = tmp_path / "installed", tmp_path / "bundle.tar"
    install(installed, "ourlab-rules", {"fedq.algorithms": "mine = ourlab.rules:Mine"}, rules=MINE)
    file.write_bytes(archive)
    code = {"digest": bundles.digest(archive), "id": "cod_1", "components": {"algorithms": ["mine"]}}
    sweep = {"algorithm": [{"kind": kind} for kind in kinds]}
    document = {**SYNTHETIC, "algorithm": {"kind": "mine"}, "code": code, "sweep": sweep}
    words = [sys.executable, "-c", PREPARE, str(file), json.dumps(document), confinement]
    done = subprocess.run(words, env=environment(installed), capture_output=True, text=True, check=False)
    return done.stderr or done.stdout.strip()


def test_a_bundle_may_be_used_beside_a_package(tmp_path: Path, confinement: Confinement) -> None:
    assert flaws(tmp_path, confinement, packed(tmp_path / "mylab"), "ourlab/mine", "mine") == "[]"


def test_an_edited_copy_of_a_package_is_used_in_its_place(tmp_path: Path, confinement: Confinement) -> None:
    package = tmp_path / "copy" / "ourlab"
    package.mkdir(parents=True)
    (package / "rules.py").write_text(MINE)
    (package / "__init__.py").touch()
    archive = bundles.pack(package.parent)
    assert flaws(tmp_path / "alone", confinement, archive, "mine") == "[]"
    told = flaws(tmp_path / "beside", confinement, archive, "ourlab/mine", "mine")
    assert "the module ourlab of the code takes the place of the package: write 'mine'" in told
