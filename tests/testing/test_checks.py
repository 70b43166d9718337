"""Each check finds the mistake that it is for, and names the line."""

from __future__ import annotations

import random
from importlib import import_module, invalidate_caches
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.testing import check_component, checks_of
from tests.testing import wrong_algorithms, wrong_components

_NUMBERS = count()
CASES = wrong_algorithms.ALGORITHMS | wrong_components.COMPONENTS


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(source: str) -> Any:
        name = f"wrong_component_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source)
        invalidate_caches()
        return import_module(name)

    return module


def marked(module: Any) -> int:
    lines = Path(module.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith("# wrong"))


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_found_at_its_line(case: str, write: Any) -> None:
    check, source = CASES[case]
    module = write(source)
    finding = next(each for each in checks_of(module.Wrong) if each.name == check).finding()
    assert finding is not None
    assert (finding.file, finding.line) == (module.__file__, marked(module)), finding
    assert all((finding.expected, finding.found, finding.cause))


RIGHT = wrong_algorithms.rule("    def direction(self, grad, y, context):\n        return grad.sign()\n")


def test_a_rule_of_signs_passes_and_generators_are_as_before_the_checks(write: Any) -> None:
    before = random.random, np.random.rand, np.random.default_rng
    assert check_component(write(RIGHT).Wrong) == []
    assert before == (random.random, np.random.rand, np.random.default_rng)
