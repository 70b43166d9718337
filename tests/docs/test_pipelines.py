"""docs/pipelines.md: what its commands cannot show here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/pipelines.md").read_text()
(WORKFLOW,) = re.findall(r"```yaml\n(# \.github/workflows/.*?)```", PAGE, re.DOTALL)


def test_the_job_is_a_workflow_of_github_actions(tmp_path: Path) -> None:
    path = tmp_path / "compare.yml"
    path.write_text(WORKFLOW)
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        str(path),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_job_types_the_command_that_the_page_carries_out() -> None:
    (step,) = [
        step["run"]
        for step in yaml.safe_load(WORKFLOW)["jobs"]["compare"]["steps"]
        if step.get("name") == "Compare"
    ]
    (typed,) = re.findall(r"^\$ (fedq submit .*)$", PAGE, re.MULTILINE)
    assert re.sub(r"--idempotency-key \S+", "", step) == re.sub(r"--idempotency-key \S+", "", typed)


def test_the_notebook_is_valid_and_kept_without_what_it_printed() -> None:
    notebook = json.loads((ROOT / "docs/examples/compare.ipynb").read_text())
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook["cells"])
