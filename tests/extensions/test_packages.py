"""Components of installed packages, each in a fresh interpreter that finds it on its path."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from fedcore.errors import SpecificationError
from fedcore.spec import ExperimentSpec, stored_arms, stored_spec
from fedcore.spec.validation import detail_of
from fedq.cli import connection
from fedq.schemas import Catalog, CatalogBlock, Kind
from tests.extensions import distributions
from tests.extensions.distributions import environment

FEDEXP = """
    from typing import ClassVar, Literal

    from fedcore.algorithms import AlgorithmSpec


    class Mine(AlgorithmSpec):
        '''FedAvg under another name.'''

        interface: ClassVar[str] = "{interface}"
        kind: Literal["mine"] = "mine"
        strength: float = 1.0
        '''A number.'''
"""


def install(
    folder: Path, name: str, group: str = "fedq.algorithms", interface: str = "2.0", value: str = ""
) -> None:
    """Lay out a distribution with one component."""
    entry = f"mine = {value or 'ourlab.rules:Mine'}"
    distributions.install(folder, name, {group: entry}, rules=FEDEXP.replace("{interface}", interface))


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", dedent(code)],
        check=False,
        env=environment(*path),
        capture_output=True,
        text=True,
    )


def test_the_kind_of_a_package_is_validated_built_and_described_without_torch(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules")
    done = python(
        """
        import json, sys
        from fedcore.spec import ExperimentSpec
        from fedcore.spec.components import check_packages, local_components
        from fedcore.spec.kinds import list_kinds
        check_packages()
        spec = ExperimentSpec.model_validate({
            "name": "n", "rounds": 2, "local": {"lr": 0.1, "steps": 1},
            "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
            "algorithm": {"kind": "ourlab/mine", "strength": 2},
        })
        # The page's form is made from this schema.
        schema = ExperimentSpec.model_json_schema()
        mapping = schema["properties"]["algorithm"]["discriminator"]["mapping"]
        print(json.dumps({
            "document": spec.model_dump(mode="json")["algorithm"],
            "again": ExperimentSpec.model_validate(spec.model_dump(mode="json")) == spec,
            "local": len(list(local_components(spec))),
            "field": schema["$defs"][mapping["ourlab/mine"].rpartition("/")[2]]["properties"]["strength"],
            "kinds": [member.model_fields["kind"].default for member in list_kinds()["algorithm"]][-1],
            "torch": "torch" in sys.modules or "numpy" in sys.modules,
        }))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "document": {"kind": "ourlab/mine", "server_lr": 1.0, "strength": 2.0},
        "again": True,
        "local": 0,
        "field": {"default": 1.0, "description": "A number.", "title": "Strength", "type": "number"},
        "kinds": "ourlab/mine",
        "torch": False,
    }


def test_an_object_of_a_packages_class_has_the_kind_of_the_package(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules")
    done = python(
        """
        from fedcore.spec import ExperimentSpec
        from fedcore.spec.components import local_components, packages_of
        from ourlab.rules import Mine
        spec = ExperimentSpec.model_validate({
            "name": "n", "rounds": 2, "local": {"lr": 0.1, "steps": 1},
            "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
            "algorithm": Mine(strength=3),
            "sweep": {"algorithm": [Mine(strength=2), {"kind": "fedavg"}]},
        })
        print(spec.algorithm.kind, spec.algorithm.strength, list(local_components(spec)), *packages_of(spec))
        print(spec.sweep)
        """,
        tmp_path,
    )
    assert done.stdout.splitlines() == [
        "ourlab/mine 3.0 [] ourlab-rules 1.2",
        "{'algorithm': [{'kind': 'ourlab/mine', 'server_lr': 1.0, 'strength': 2.0}, {'kind': 'fedavg'}]}",
    ], done.stderr


def test_a_class_of_a_package_leaves_the_names_of_schemas_as_they_are(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules", value="ourlab.rules:FedProx")
    rules = tmp_path / "ourlab" / "rules.py"
    rules.write_text(rules.read_text().replace("class Mine", "class FedProx"))
    done = python(
        """
        from fedcore.spec import ExperimentSpec
        mapping = ExperimentSpec.model_json_schema()["properties"]["algorithm"]["discriminator"]["mapping"]
        print(mapping["fedprox"], mapping["ourlab/mine"])
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["#/$defs/FedProx", "#/$defs/OurlabMine"], done.stderr


CHECK = "from fedcore.spec.components import check_packages; check_packages()"


def test_two_packages_with_the_same_kind_are_both_named(tmp_path: Path) -> None:
    install(tmp_path / "a", "ourlab-rules")
    install(tmp_path / "b", "theirs")
    done = python(CHECK, tmp_path / "a", tmp_path / "b")
    assert done.returncode != 0
    assert "ourlab-rules 1.2 and theirs 1.2 both define fedq.algorithms 'ourlab/mine'" in done.stderr


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"interface": "1.0"}, "ourlab-rules 1.2 needs version 1.0 of fedq.extensions; this is 2.0"),
        ({"interface": "2.7"}, "ourlab-rules 1.2 needs version 2.7 of fedq.extensions; this is 2.0"),
        (
            {"group": "fedq.algoritms"},
            "ourlab-rules 1.2 declares entry points fedq.algoritms; the groups are",
        ),
        ({"value": "ourlab.missing:Mine"}, "ourlab-rules 1.2: ourlab.missing:Mine cannot be imported"),
        ({"value": "pathlib:Path"}, "ourlab-rules 1.2: pathlib:Path must be a subclass of AlgorithmSpec"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    install(tmp_path, "ourlab-rules", **changed)
    done = python(CHECK, tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_distribution_that_is_on_the_path_twice_is_one_package(tmp_path: Path) -> None:
    install(tmp_path / "a", "ourlab-rules")
    install(tmp_path / "b", "ourlab-rules")
    assert python(CHECK, tmp_path / "a", tmp_path / "b").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(
            ("uvicorn", "--factory", "api.app:create_app", "--port", "0"), marks=pytest.mark.nightly
        ),
        ("workers.worker",),
        pytest.param(("workers.reconciler",), marks=pytest.mark.nightly),
        pytest.param(("workers.embedded.supervisor", "--port", "0"), marks=pytest.mark.nightly),
        ("fedq.cli", "presets"),
    ],
    ids=lambda start: start[0],
)
def test_every_process_ends_with_one_line_that_names_packages_it_cannot_use(
    tmp_path: Path, start: tuple[str, ...]
) -> None:
    install(tmp_path / "a", "ourlab-rules")
    install(tmp_path / "b", "theirs")
    done = subprocess.run(
        [sys.executable, "-m", *start],
        check=False,
        env={**environment(tmp_path / "a", tmp_path / "b"), "FEDQ_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line.strip()] == [
        (
            "fedq: ourlab-rules 1.2 and theirs 1.2 both define fedq.algorithms 'ourlab/mine';"
            " uninstall one of them"
        )
    ]


def test_a_package_that_loads_torch_at_import_is_named(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules")
    (tmp_path / "ourlab" / "__init__.py").write_text("import torch\n")
    done = python(CHECK, tmp_path)
    assert done.returncode != 0
    assert "ourlab-rules 1.2: ourlab.rules:Mine imports torch when it is imported" in done.stderr


def test_the_packages_of_a_specification_are_those_of_all_its_arms(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules")
    done = python(
        """
        from fedcore.packages import encode_packages
        from fedcore.spec import ExperimentSpec
        from fedcore.spec.components import packages_of, find_requirements
        document = {
            "name": "n", "rounds": 2, "local": {"lr": 0.1, "steps": 1},
            "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
            "algorithm": {"kind": "fedavg"},
        }
        plain = ExperimentSpec.model_validate(document)
        swept = ExperimentSpec.model_validate(
            document | {"sweep": {"algorithm.kind": ["fedavg", "ourlab/mine"]}}
        )
        print(packages_of(plain), find_requirements(plain))
        print(*packages_of(swept), *map(encode_packages, [packages_of(arm.spec) for arm in swept.arms()]))
        """,
        tmp_path,
    )
    assert done.stdout.splitlines() == ["[] {None}", 'ourlab-rules 1.2 None ["ourlab-rules 1.2"]'], (
        done.stderr
    )


def test_the_digest_of_a_package_depends_on_its_code_and_not_on_how_it_was_installed(tmp_path: Path) -> None:
    digest = "from fedcore.packages import file_digest; print(file_digest('ourlab-rules'))"
    for place in ("folder", "wheel", "edited"):
        install(tmp_path / place, "ourlab-rules")
    (tmp_path / "wheel" / "ourlab_rules-1.2.dist-info" / "RECORD").write_text(
        "ourlab/__init__.py,,\nourlab/rules.py,,\nourlab/__pycache__/rules.pyc,,\n../bin/tool,,\n"
        "ourlab_rules-1.2.dist-info/METADATA,,\n"
    )
    (tmp_path / "edited" / "ourlab" / "rules.py").write_text("Mine = None")
    found = {place: python(digest, tmp_path / place).stdout for place in ("folder", "wheel", "edited")}
    assert found["folder"] == found["wheel"]
    assert len({*found.values()} - {""}) == 2


STORED = {
    "name": "n",
    "rounds": 2,
    "local": {"lr": 0.1, "steps": 1},
    "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
    "algorithm": {"kind": "fedavg"},
    "evaluation": {"measures": ["train_loss", "gone/norm"]},
    "sweep": {"algorithm": [{"kind": "fedavg"}, {"kind": "gone/rule", "strength": 2.0}]},
}


def test_a_stored_experiment_can_be_read_after_its_package_was_removed() -> None:
    spec = stored_spec(STORED)
    assert spec.evaluation.measures == ("train_loss", "gone/norm")
    arms = stored_arms(STORED)
    assert [arm.spec.algorithm.kind for arm in arms] == ["fedavg", "gone/rule"]
    assert arms[1].spec.model_dump(mode="json")["algorithm"]["strength"] == 2.0
    with pytest.raises((ValidationError, SpecificationError), match="gone/"):
        ExperimentSpec.model_validate(STORED)


def test_a_kind_of_a_package_that_is_not_installed_is_said_to_be_one() -> None:
    plain = {name: value for name, value in STORED.items() if name != "sweep"}
    with pytest.raises(ValidationError) as refused:
        ExperimentSpec.model_validate({**plain, "algorithm": {"kind": "gone/rule"}})
    for error in refused.value.errors():
        assert "'; no installed package defines it: install" in detail_of(error)


@pytest.mark.nightly
def test_the_documentation_site_describes_the_kinds_of_packages(tmp_path: Path) -> None:
    install(tmp_path, "ourlab-rules")
    done = python(
        """
        from deploy.site.__main__ import reference
        print(dict(reference())["specification/algorithm.md"])
        """,
        tmp_path,
    )
    _, _, part = done.stdout.partition("### `ourlab/mine`")
    assert part.strip().startswith("FedAvg under another name."), done.stderr
    assert "| `strength` |" in part


def test_shell_completion_offers_the_kind_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        Kind(kind=kind, description=f"About {kind}.\n\nMore.", source=None, defaults={}, json_schema={})
        for kind in ("fedavg", "ourlab/mine")
    ]
    offered = Catalog(
        blocks=[CatalogBlock(path="algorithm", kinds=kinds)], measures=["ourlab/norm"], json_schema={}
    )
    monkeypatch.setattr(
        connection, "connect", lambda **_: nullcontext(SimpleNamespace(catalogue=lambda: offered))
    )
    assert connection.complete_kinds("algorithm.kind=our") == [
        ("algorithm.kind=ourlab/mine", "About ourlab/mine.")
    ]
    assert connection.complete_metrics("our") == [("ourlab/norm", "")]
