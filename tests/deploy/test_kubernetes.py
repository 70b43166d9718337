"""The manifests for Kubernetes are valid, and name only what there is."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate
from sqlalchemy import text

from fedcore.platform.store import Database
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.sandbox import peak_bytes
from fedcore.settings import Settings
from tests.deploy.conftest import ROOT
from tests.platform.store.acts import claim, submit
from tests.support.described import described
from workers.embedded.stack import BEYOND_GRACE_S

FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.37"
NAME, PART_OF = "app.kubernetes.io/name", "app.kubernetes.io/part-of"
Manifest = dict[str, Any]


def _documents(*files: Path) -> list[Manifest]:
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def _kustomization(folder: Path) -> Manifest:
    return _documents(folder / "kustomization.yaml")[0]


def _resources() -> list[Path]:
    parts = [
        FOLDER / part
        for part in (*_kustomization(FOLDER)["resources"], *_kustomization(FOLDER)["components"])
    ]
    return [part / name for part in parts for name in _kustomization(part)["resources"]]


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return _documents(*_resources())


@pytest.fixture(scope="module")
def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Specification of each kind of pod, by the name of its workload."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in manifests
        if one["kind"] in ("Deployment", "Job")
    }


@pytest.fixture(scope="module")
def shared() -> dict[str, str]:
    """The settings that all of them have."""
    (settings,) = _kustomization(FOLDER / "base")["configMapGenerator"]
    secret = (FOLDER / "secret.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in (*settings["literals"], *secret))


def _container(pod: Manifest) -> Manifest:
    (only,) = pod["containers"]
    return dict(only)


def _settings(pod: Manifest, shared: dict[str, str]) -> dict[str, str]:
    return shared | {one["name"]: one["value"] for one in _container(pod).get("env", [])}


def test_every_file_is_part_of_what_is_applied() -> None:
    assert set(_resources()) == {
        file for file in FOLDER.glob("*/*.yaml") if file.name != "kustomization.yaml"
    }


def test_every_manifest_is_valid(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if not manifest["apiVersion"].startswith("keda.sh/"):
            validate(manifest, KUBERNETES, strict=True)


def test_every_setting_is_one_that_fedq_reads(
    pods: dict[str, Manifest], shared: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for pod in pods.values():
        with monkeypatch.context() as patch:
            for name, value in _settings(pod, shared).items():
                assert name.removeprefix("FEDQ_").lower() in Settings.model_fields
                patch.setenv(name, value)
            assert Settings(_env_file=None).database == shared["FEDQ_DATABASE_URL"]
        assert {kind for source in _container(pod)["envFrom"] for kind in source} == {
            "configMapRef",
            "secretRef",
        }


def test_processes_and_images_are_those_of_the_compose_file(
    pods: dict[str, Manifest], ours: dict[str, Any]
) -> None:
    assert {name.removeprefix("fedq-") for name in pods} == set(ours)
    for name, service in ours.items():
        container = _container(pods[f"fedq-{name}"])
        assert container["image"] == service["image"]
        assert container["command"][: len(service["command"])] == service["command"]
    assert {image["name"] for image in _kustomization(FOLDER)["images"]} == {
        service["image"] for service in ours.values()
    }


def test_probes_ask_for_paths_that_there_are_at_the_port_that_is_listened_on(
    pods: dict[str, Manifest], manifests: list[Manifest]
) -> None:
    container = _container(pods["fedq-api"])
    (port,) = container["ports"]
    assert str(port["containerPort"]) == container["command"][container["command"].index("--port") + 1]
    paths = described()["paths"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in paths
        assert asked["port"] == port["name"]
    targets = [
        one["targetPort"]
        for manifest in manifests
        if manifest["kind"] == "Service"
        for one in manifest["spec"]["ports"]
    ]
    assert targets == [port["name"]]


def test_who_is_asked_to_end_is_given_the_time_that_it_takes(
    pods: dict[str, Manifest], shared: dict[str, str]
) -> None:
    for name in ("fedq-worker", "fedq-worker-gpu"):
        assert (
            pods[name]["terminationGracePeriodSeconds"]
            >= float(shared["FEDQ_GRACE_SECONDS"]) + BEYOND_GRACE_S
        )
    api, command = pods["fedq-api"], _container(pods["fedq-api"])["command"]
    streams_s = int(command[command.index("--timeout-graceful-shutdown") + 1])
    assert (
        api["terminationGracePeriodSeconds"]
        > streams_s + _container(api)["lifecycle"]["preStop"]["sleep"]["seconds"]
    )


def _bytes(quantity: str) -> int:
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]


def test_the_largest_upload_fits_into_the_memory_of_the_api(
    pods: dict[str, Manifest], shared: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, memory = (
        pods["fedq-api"],
        {name: part["memory"] for name, part in _container(pods["fedq-api"])["resources"].items()},
    )
    for name, value in _settings(api, shared).items():
        monkeypatch.setenv(name, value)
    assert _bytes(memory["requests"]) + peak_bytes(UploadLimits.of(Settings(_env_file=None))) <= _bytes(
        memory["limits"]
    )


def test_what_a_worker_leaves_for_its_successor_outlives_its_container(
    pods: dict[str, Manifest], shared: dict[str, str]
) -> None:
    for name in ("fedq-worker", "fedq-worker-gpu"):
        home = _settings(pods[name], shared)["FEDQ_HOME"]
        (volume,) = (
            one["name"]
            for one in _container(pods[name])["volumeMounts"]
            if home.startswith(f"{one['mountPath']}/")
        )
        assert {"name": volume, "emptyDir": {}} in pods[name]["volumes"]


def test_pods_run_as_nobody_in_particular_with_nothing_to_write_but_their_volumes(
    pods: dict[str, Manifest],
) -> None:
    for pod in pods.values():
        container = _container(pod)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert f"USER {pod['securityContext']['runAsUser']}\n" in (ROOT / "Dockerfile").read_text()
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_what_selects_pods_selects_some(manifests: list[Manifest], pods: dict[str, Manifest]) -> None:
    made = [
        one["spec"]["template"]["metadata"]["labels"] | {PART_OF: "fedq"}
        for one in manifests
        if "template" in one["spec"]
    ]
    selectors = [
        spec["selector"].get("matchLabels", spec["selector"])
        if "selector" in spec
        else spec["podSelector"]["matchLabels"]
        for spec in (one["spec"] for one in manifests)
        if {"selector", "podSelector"} & spec.keys()
    ]
    assert len(selectors) == len(pods) - 1 + 4
    assert all(any(selector.items() <= labels.items() for labels in made) for selector in selectors)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_there_are_as_many_workers_as_runs_of_their_queues(
    manifests: list[Manifest], pods: dict[str, Manifest], shared: dict[str, str], database: Database
) -> None:
    for queue in ("default", "default", "cpu", "gpu", "elsewhere"):
        submit(database, execution={"queue": queue})
    claim(database)
    scaled = [manifest["spec"] for manifest in manifests if manifest["kind"] == "ScaledObject"]
    (login,) = (manifest for manifest in manifests if manifest["kind"] == "TriggerAuthentication")
    assert login["spec"]["secretTargetRef"][0]["key"] in shared
    counted = {}
    for spec in scaled:
        (trigger,) = spec["triggers"]
        assert trigger["authenticationRef"] == {"name": login["metadata"]["name"]}
        with database.reading() as session:
            counted[spec["scaleTargetRef"]["name"]] = session.scalar(text(trigger["metadata"]["query"]))
        served = _settings(pods[spec["scaleTargetRef"]["name"]], shared)["FEDQ_QUEUES"].split(",")
        assert all(f"'{queue}'" in trigger["metadata"]["query"] for queue in served)
    assert counted == {"fedq-worker": 3, "fedq-worker-gpu": 1}
