"""Every measure is told of, under its name and no other."""

import re
from pathlib import Path
from typing import get_args

from fedcore.spec.evaluation import Measure

PAGE = Path(__file__).parents[2] / "docs" / "measures.md"
ALWAYS = {"objective", "suboptimality", "distance"}


def test_the_page_on_measures_names_each_of_them() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted({*get_args(Measure), *ALWAYS})
