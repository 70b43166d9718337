"""The Helm chart makes valid manifests, which name only what there is."""

import os
import shutil
import subprocess
import sys
import tomllib
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
from tests.builders.claims import claim
from tests.builders.experiments import submit
from tests.deploy.conftest import ROOT
from tests.support.described import described
from workers.embedded.stack import BEYOND_GRACE_S

CHART = ROOT / "deploy" / "helm"
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
KUBERNETES = "1.37"
EVERYTHING = "workers.worker-gpu.enabled=true,scaling.enabled=true"
PART_OF = "app.kubernetes.io/part-of"
Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(HELM is None, reason="there is no helm for this machine")


def _rendered(*options: str) -> list[Manifest]:
    """The manifests that Helm makes of the chart for a release `fedq`."""
    assert HELM is not None
    command = [HELM, "template", "fedq", str(CHART), "--namespace=fedq", *options]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(made.stdout) if document]


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """Those of a release with all parts."""
    return _rendered(f"--set={EVERYTHING}")


@pytest.fixture(scope="module")
def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Specification of each kind of pod, by the name of its container's workload."""
    return {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]: one["spec"]["template"][
            "spec"
        ]
        for one in manifests
        if one["kind"] in ("Deployment", "Job")
    }


@pytest.fixture(scope="module")
def shared(manifests: list[Manifest]) -> dict[str, str]:
    """The settings that all of them have."""
    (settings,) = (one["data"] for one in manifests if one["kind"] == "ConfigMap")
    secret = (CHART / "secret.env.example").read_text().splitlines()
    return settings | dict(line.split("=", 1) for line in secret)


def _container(pod: Manifest) -> Manifest:
    (only,) = pod["containers"]
    return dict(only)


def _settings(pod: Manifest, shared: dict[str, str]) -> dict[str, str]:
    given = _container(pod).get("env", [])
    return shared | {one["name"]: one.get("value", "10.0.0.1") for one in given}


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert HELM is not None
    subprocess.run([HELM, "lint", "--strict", str(CHART), f"--set={EVERYTHING}"], check=True)


def test_the_version_of_the_chart_is_that_of_fedq() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_only_what_is_asked_for_is_installed() -> None:
    made = _rendered()
    assert {one["metadata"]["name"] for one in made if one["kind"] == "Deployment"} == {
        "fedq-api",
        "fedq-reconciler",
        "fedq-worker",
    }
    assert not any(one["apiVersion"].startswith("keda.sh/") for one in made)
    (claim_,) = (one for one in made if one["kind"] == "PersistentVolumeClaim")
    assert claim_["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    elsewhere = _rendered("--set=storage.existingClaim=shared")
    assert not any(one["kind"] == "PersistentVolumeClaim" for one in elsewhere)


def test_pools_of_workers_can_be_added(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "workers: {worker-large: {enabled: true, replicas: 3, queues: [large], device: cpu,"
        " settings: {FEDQ_SLICE_SECONDS: 30}, terminationSeconds: 300, resources: {limits: {memory: 64Gi}},"
        " nodeSelector: {size: large}, tolerations: [{key: large, operator: Exists}]}}"
    )
    found = _rendered(f"--values={values}")
    made = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Deployment"}
    large = made["fedq-worker-large"]
    assert (made["fedq-worker"]["replicas"], large["replicas"]) == (2, 3)
    pod = large["template"]["spec"]
    assert pod["nodeSelector"] == {"size": "large"}
    assert pod["tolerations"] == [{"key": "large", "operator": "Exists"}]
    settings = {one["name"]: one.get("value") for one in _container(pod)["env"]}
    assert settings["FEDQ_QUEUES"] == "large"
    assert settings["FEDQ_SLICE_SECONDS"] == "30"


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("workers.worker.replica=3", "replica"),
        ("workers.worker.queues={}", "queues"),
        ("api.replicas=many", "replicas"),
        ("settings.fedq_log_level=debug", "fedq_log_level"),
    ],
)
def test_a_wrong_value_is_named(option: str, named: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        _rendered(f"--set={option}")
    assert named in error.value.stderr


def test_new_settings_reach_running_pods() -> None:
    """Pods read settings when they start: their template changes with them."""

    def templates(*options: str) -> list[Manifest]:
        return [one["spec"]["template"] for one in _rendered(*options) if one["kind"] == "Deployment"]

    before, after = templates(), templates("--set=settings.FEDQ_LOG_LEVEL=debug")
    assert all(one != other for one, other in zip(before, after, strict=True))


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
        assert container["image"].split(":")[0] == service["image"]
        assert container["command"][: len(service["command"])] == service["command"]


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


def test_pods_asked_to_end_are_given_the_time_that_it_takes(
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
    assert _bytes(memory["requests"]) + peak_bytes(
        UploadLimits(Settings(_env_file=None).upload_max_bytes)
    ) <= _bytes(memory["limits"])


def test_files_a_worker_leaves_for_its_successor_outlive_its_container(
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


def test_every_selector_of_pods_selects_some(manifests: list[Manifest], pods: dict[str, Manifest]) -> None:
    made = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in manifests
        if "template" in one.get("spec", {})
    ]
    selectors = [
        spec["selector"].get("matchLabels", spec["selector"])
        if "selector" in spec
        else spec["podSelector"]["matchLabels"]
        for spec in (one.get("spec", {}) for one in manifests)
        if {"selector", "podSelector"} & spec.keys()
    ]
    # Deployments select their own; besides a service, a budget and three policies.
    assert len(selectors) == len(pods) - 1 + 5
    assert all(any(selector.items() <= labels.items() for labels in made) for selector in selectors)


def test_workers_reach_one_another_and_nobody_else_reaches_them(
    manifests: list[Manifest], pods: dict[str, Manifest]
) -> None:
    """Runs with shards need connections between workers; names of pods are not resolved."""
    policies = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"}
    assert "ingress" not in policies["fedq"]
    assert policies["fedq"]["podSelector"]["matchLabels"][PART_OF] == "fedq"
    workers_ = policies["fedq-workers"]
    assert workers_["ingress"] == [{"from": [{"podSelector": workers_["podSelector"]}]}]
    for name in ("fedq-worker", "fedq-worker-gpu"):
        (host,) = (one for one in _container(pods[name])["env"] if one["name"] == "FEDQ_GROUP_HOST")
        assert host["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


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
