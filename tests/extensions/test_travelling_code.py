"""Own code travels from one service to another with the results of an experiment."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from fedq.client import Client
from fedq.embedded import embedded_service
from tests.api.bundles.test_routes import EXPERIMENT, RULES
from tests.extensions.distributions import install
from tests.support.commands import START_S


@pytest.mark.nightly
def test_an_edited_copy_of_a_package_is_exported_imported_and_run_again_elsewhere_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home one has the package `ourlab`, whose edited copy is sent as code; home two has neither."""
    installed, copy = tmp_path / "installed", tmp_path / "copy" / "ourlab"
    install(
        installed, "ourlab-rules", {"fedq.algorithms": "half_speed = ourlab.rules:HalfSpeed"}, rules=RULES
    )
    copy.mkdir(parents=True)
    (copy / "__init__.py").touch()
    (copy / "rules.py").write_text(dedent(RULES).replace("factor: float = 0.5", "factor: float = 0.125"))
    kinds = [{"kind": "half_speed"}, {"kind": "half_speed", "factor": 0.125}]
    document = EXPERIMENT | {"sweep": {"algorithm": kinds}}
    root = str(Path(__file__).parents[2])

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), root]))
    with embedded_service(1) as (url, key), Client(url, key, timeout_s=START_S) as one:
        assert "ourlab/half_speed" in str(one.catalogue())
        there = one.submit(document, code=copy.parent)
        assert one.wait(there.id, timeout_s=300).status == "succeeded"
        file = one.export(there.id, "fedq", tmp_path / "there.fedq.json.gz")
        expected = [[row.extra["objective"] for row in one.rounds(run.id)] for run in one.runs(there.id)]
        code = there.specification["code"]["digest"]

    monkeypatch.setenv("PYTHONPATH", root)
    with embedded_service(1) as (url, key), Client(url, key, timeout_s=START_S) as two:
        alone = two.import_(file, code=False)
        assert [code in missing for missing in alone.missing] == [True]
        here = two.import_(file)
        assert (here.id, two.experiment(here.id).missing) == (alone.id, [])
        assert (two.bundle(code).digest, two.bundle(code).owner) == (code, "local")
        again = two.reproduce(here.id)
        assert two.wait(again.id, timeout_s=300).status == "succeeded"
        assert two.reproduction(again.id).outcome == "identical"
        found = [[row.extra["objective"] for row in two.rounds(run.id)] for run in two.runs(again.id)]
        # The default is that of the edited copy.
        assert found[0] == found[1] == expected[0] == expected[1]
