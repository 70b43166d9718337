"""Arguments of `--set`, and the values that they stand for."""

from typing import Any

import pytest

from fedq.cli.experiments import overrides


@pytest.mark.parametrize(
    ("assignments", "document"),
    [
        ([], {}),
        (["rounds=3", "local.lr=0.1", "local.epochs=2"], {"rounds": 3, "local": {"lr": 0.1, "epochs": 2}}),
        (
            ["seeds=[0, 1]", "algorithm={kind: fedprox, mu: 1}"],
            {"seeds": [0, 1], "algorithm": {"kind": "fedprox", "mu": 1}},
        ),
        (["sweep.local.lr=[0.1, 0.2]"], {"sweep": {"local.lr": [0.1, 0.2]}}),
        (["sweep=null", "name=a=b"], {"sweep": None, "name": "a=b"}),
        (["rounds=3", "rounds=4"], {"rounds": 4}),
    ],
)
def test_paths_are_dotted_and_values_are_yaml(assignments: list[str], document: dict[str, Any]) -> None:
    assert overrides(assignments) == document
