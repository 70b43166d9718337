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


def test_a_bundle_may_be_used_beside_a_package(tmp_path: Path, confinement: Confinement) -> None:
    install(
        tmp_path,
        "ourlab-rules",
        {"fedq.algorithms": "mine = ourlab.rules:Mine"},
        rules=MINE,
    )
    archive = tmp_path / "bundle.tar"
    archive.write_bytes(packed(tmp_path / "mylab"))
    code = {
        "digest": bundles.digest(archive.read_bytes()),
        "id": "cod_1",
        "components": {"algorithms": ["mine"]},
    }
    document = {
        **SYNTHETIC,
        "algorithm": {"kind": "mine"},
        "code": code,
        "sweep": {"algorithm": [{"kind": "ourlab/mine"}, {"kind": "mine"}]},
    }
    words = [sys.executable, "-c", PREPARE, str(archive), json.dumps(document), confinement]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
