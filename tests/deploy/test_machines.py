"""The systemd units and the Apptainer recipe name only what there is."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedcore.settings import Settings
from tests.deploy.conftest import ROOT
from workers.embedded.stack import API, BEYOND_GRACE_S

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
RECIPE = (ROOT / "deploy" / "apptainer" / "fedq-worker.def").read_text()


def _section(unit: Path, name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # systemd distinguishes case
    parser.read_string(unit.read_text())
    return parser[name]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With programs that exist here in place of those of /opt/fedq."""
    for unit in UNITS:
        text = re.sub(r"/opt/fedq/bin/\w+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text.replace("User=fedq\n", "User=root\n"))
    # An instance, since a template alone is not checked.
    names = [str(tmp_path / unit.name.replace("@.", "@1.")) for unit in UNITS]
    shutil.copy(tmp_path / "fedq-worker@.service", tmp_path / "fedq-worker@1.service")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in ended.stderr.splitlines() if str(tmp_path) in line or "fedq" in line]
    assert complaints == []


def test_units_run_the_processes_of_the_stack() -> None:
    commands = {unit.stem: _section(unit, "Service")["ExecStart"].split() for unit in UNITS}
    python = "/opt/fedq/bin/python"
    assert commands["fedq-worker@"] == [python, "-m", "workers.worker"]
    assert commands["fedq-reconciler"] == [python, "-m", "workers.reconciler"]
    api = [part for option in API[1:] for part in option.split("=")]
    assert [part for part in api if part not in commands["fedq-api"]] == []


def test_a_worker_may_take_its_grace() -> None:
    (unit,) = (unit for unit in UNITS if unit.stem == "fedq-worker@")
    service = _section(unit, "Service")
    grace_s = Settings.model_fields["grace_seconds"].default
    assert float(service["TimeoutStopSec"]) >= grace_s + BEYOND_GRACE_S
    assert service["KillMode"] == "mixed"


def test_settings_of_the_units_are_those_of_fedq() -> None:
    lines = (ROOT / "deploy" / "systemd" / "fedq.env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines)
    assert {name.removeprefix("FEDQ_").lower() for name in given} <= set(Settings.model_fields)
    Settings.model_validate({name.removeprefix("FEDQ_").lower(): value for name, value in given.items()})
    state = "/var/lib/fedq"
    assert all(given[name].startswith(state) for name in ("FEDQ_HOME", "FEDQ_STORAGE_URL", "FEDQ_DATA_DIR"))


def test_a_worker_keeps_machine_code_in_its_folder_for_caches() -> None:
    (unit,) = (unit for unit in UNITS if unit.stem == "fedq-worker@")
    service = _section(unit, "Service")
    assert service["Environment"] == f"XDG_CACHE_HOME=%C/{service['CacheDirectory']}"


def test_the_recipe_has_the_sections_and_programs_it_needs() -> None:
    sections = re.split(r"^%", RECIPE, flags=re.MULTILINE)
    named = {section.split("\n")[0]: section for section in sections[1:]}
    assert {"arguments", "post", "environment", "runscript", "apprun worker", "test"} == set(named)
    dockerfile = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^From: (.*)$", RECIPE, flags=re.MULTILINE)
    assert f"FROM {base} AS python" in dockerfile
    assert "workers.worker" in named["apprun worker"]
    assert "{{ version }}" in named["post"]
    for script in ("post", "environment", "runscript", "apprun worker", "test"):
        body = named[script].partition("\n")[2]
        subprocess.run(["sh", "-n"], input=body, text=True, check=True)
