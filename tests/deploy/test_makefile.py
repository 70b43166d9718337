"""`make help` lists the targets that are described."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_help_lists_every_described_target() -> None:
    described = re.findall(r"^([^:\s]+):.*? ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "e2e" in described
    told = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[1] for line in told.stdout.splitlines()] == described
