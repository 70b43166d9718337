"""The example packages as objects, as installed packages and as a code bundle: the same bits."""

from __future__ import annotations

import os
import shutil
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedcore import run
from fedq.client import Client
from fedq.embedded import embedded_service
from tests.builders.specifications import DIGITS, Document, specification
from tests.support.commands import START_S

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "extensions"


def experiment(algorithm: Any, aggregator: Any, participation: Any, *measures: Any) -> Document:
    """One arm with the algorithm, and one with the aggregator."""
    partition = {**DIGITS["problem"]["partition"], "hold_out": 0.2}
    return DIGITS | {
        "problem": {**DIGITS["problem"], "partition": partition},
        "participation": participation,
        "evaluation": {"measures": ["train_loss", "test_accuracy", "confusion_matrix", *measures]},
        "sweep": {
            "arms": [
                {"name": "algorithm", "algorithm": algorithm},
                {"name": "aggregator", "aggregator": aggregator},
            ]
        },
        "execution": {"engine": "reference"},
    }


FIELDS: dict[str, Document] = {
    "our_fedexp": {"epsilon": 0.01},
    "our_clipping": {"radius": 0.5},
    "our_power_of_choice": {"clients_per_round": 2, "candidates": 4},
    "agreement": {},
    "client_gap": {},
}


def by_kind(*, installed: bool) -> list[Document]:
    return [{"kind": f"{name}/{name}" if installed else name, **fields} for name, fields in FIELDS.items()]


def install(folder: Path) -> None:
    """Lay the packages out in a folder, as an installer does."""
    for example in EXAMPLES.iterdir():
        project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
        shutil.copy(example / f"{example.name}.py", folder)
        info = folder / f"{example.name}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        for group, points in project["entry-points"].items():
            lines = "\n".join(f"{name} = {target}" for name, target in points.items())
            (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")


def numbers(row: Any) -> tuple[Any, ...]:
    agreement, gap = (
        next(value for name, value in row.extra.items() if name.endswith(ending))
        for ending in ("agreement", "client_gap")
    )
    return row.train_loss, row.test_accuracy, row.bytes_up, agreement, gap, row.extra["confusion_matrix"]


@pytest.mark.nightly
def test_objects_packages_and_bundles_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, installed = tmp_path / "lab", tmp_path / "installed"
    lab.mkdir()
    installed.mkdir()
    install(installed)
    for example in EXAMPLES.iterdir():
        # Under names of their own: else they would take the place of the installed ones.
        shutil.copy(example / f"{example.name}.py", lab / f"own_{example.name}.py")
        monkeypatch.syspath_prepend(example)
    roots = installed, Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, roots)))
    with embedded_service(1) as (url, key), Client(url, key, timeout_s=START_S) as client:
        made = [
            client.submit(experiment(*by_kind(installed=True))),
            client.submit(experiment(*by_kind(installed=False)), code=lab),
        ]
        rows = {}
        for way, submitted in zip(("package", "bundle"), made, strict=True):
            assert client.wait(submitted.id, timeout_s=300).status == "succeeded"
            for played in client.runs(submitted.id):
                rows[way, played.arm] = [numbers(row) for row in client.rounds(played.id)]
    classes = {
        name: next(
            member
            for member in vars(import_module(name)).values()
            if isinstance(member, type) and member.__module__ == name and hasattr(member, "interface")
        )
        for name in FIELDS
    }
    spec = specification(experiment(*(classes[name](**fields) for name, fields in FIELDS.items())))
    reports = list(run(spec))
    for arm in range(2):
        expected = [numbers(report) for report in reports if report.arm == arm]
        assert len(expected) == DIGITS["rounds"]
        assert rows["package", arm] == rows["bundle", arm] == expected
