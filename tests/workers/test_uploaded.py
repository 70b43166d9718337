"""A user's own data, from the upload to the result, and the same without a service."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedcore import ExperimentSpec
from fedcore.platform.access import Scope
from fedcore.platform.store import Status
from fedcore.platform.store.tables import RunRecord
from fedcore.platform.uploads.local import keep
from fedcore.settings import Settings
from fedcore.simulation.simulation import Simulation
from fedq.client import Client
from tests.builders.specifications import SYNTHETIC, Document
from tests.platform.uploads.files import Arrays, arrays, npz, parquet
from tests.support.access import bearer, key_for
from tests.support.asgi import application, calling
from tests.support.service import Service
from tests.workers.deployment import Deployment
from workers.reconciler import remove_due
from workers.runner import build_runner

OWN: Document = {
    "name": "own data",
    "problem": {"model": {"kind": "mlp", "hidden": [5]}},
    "algorithm": {"kind": "scaffold"},
    "local": {"lr": 0.1, "epochs": 2, "batch_size": 3},
    "participation": {"kind": "uniform", "clients_per_round": 4},
    "compression": {"uplink": {"kind": "top_k", "ratio": 0.5, "error_feedback": True}},
    "rounds": 4,
}


@contextmanager
def calling_site(deployment: Deployment, **settings: Any) -> Iterator[httpx.Client]:
    """A client of the service of a deployment."""
    prefix = "FEDQ_"
    given: dict[str, Any] = {
        name.removeprefix(prefix).lower(): value
        for name, value in deployment.environment.items()
        if name.startswith(prefix)
    }
    app = application(Settings(_env_file=None, **given, **settings))
    with calling(app, key_for(given["database_url"])) as client:
        yield client


@pytest.fixture
def http(deployment: Deployment) -> Iterator[httpx.Client]:
    """A client of the service of the deployment."""
    with calling_site(deployment) as client:
        yield client


def _submit(http: httpx.Client, data: bytes, **problem: Any) -> Document:
    dataset = http.post("/v1/datasets", params={"name": "mine"}, content=data).json()
    document = OWN | {
        "problem": {"dataset": {"kind": "uploaded", "id": dataset["id"]}, **OWN["problem"], **problem}
    }
    answer = http.post("/v1/experiments", json=document)
    assert answer.status_code == 201, answer.text
    return {"experiment": answer.json()["id"], "dataset": dataset["id"], "digest": dataset["digest"]}


def _work(deployment: Deployment, experiment: str) -> RunRecord:
    with deployment.runner() as runner:
        runner.work()
    return deployment.run(experiment)


def _alone(held: Arrays, folder: Path, **problem: Any) -> tuple[list[tuple[Any, ...]], dict[str, Tensor]]:
    """Rows and model of the same data played without a service."""
    file = folder / "mine.npz"
    file.write_bytes(npz(held))
    spec = ExperimentSpec.model_validate(
        OWN | {"problem": {"dataset": keep(file, folder), **OWN["problem"], **problem}}
    )
    simulation = Simulation(spec, 0, data_dir=folder)
    return [_measures(simulation.advance()) for _ in range(spec.rounds)], simulation.model()


def _measures(row: Any) -> tuple[Any, ...]:
    return (
        row.round,
        row.train_loss,
        row.test_loss,
        row.test_accuracy,
        row.local_steps,
        row.bytes_up,
        row.bytes_down,
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, {}),
        (
            {"client": None},
            {"partition": {"kind": "dirichlet", "clients": 5, "alpha": 1.0, "min_samples": 2}},
        ),
    ],
    ids=["federated", "in one piece"],
)
def test_a_worker_computes_what_the_library_does_alone(
    deployment: Deployment, http: httpx.Client, tmp_path: Path, changes: Document, problem: Document
) -> None:
    held = arrays(**changes)
    made = _submit(http, parquet(held), **problem)
    run = _work(deployment, made["experiment"])
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    rows, model = _alone(held, tmp_path, **problem)
    assert [_measures(row) for row in deployment.rows(run.id)] == rows
    assert run.model is not None
    with deployment.storage.open(run.model) as file:
        stored = load(file.read())
    assert all(torch.equal(stored[name], model[name]) for name in model)
    assert run.provenance["data_sha256"] == made["digest"]
    assert run.provenance["data_source"] == f"uploaded {made['dataset']} (sha256 {made['digest']})"


def test_a_worker_starts_from_uploaded_weights(embedded: Deployment) -> None:
    weights = {
        "1.weight": torch.randn(10, 60, generator=torch.Generator().manual_seed(0)),
        "1.bias": torch.ones(10),
    }
    model = {"kind": "import", "path": "tests.models.factories:plain", "parameters": 610}
    with calling_site(embedded, models_allowed=("tests.models.*",)) as http:
        digest = http.post("/v1/weights", content=save(weights)).json()["digest"]
        problem = {**SYNTHETIC["problem"], "model": {**model, "weights": digest}}
        local = {"lr": 1e-30, "steps": 1}
        answer = http.post(
            "/v1/experiments", json=SYNTHETIC | {"problem": problem, "local": local, "rounds": 1}
        )
        assert answer.status_code == 201, answer.text
    run = _work(embedded.with_settings(models_allowed="tests.models.*"), answer.json()["id"])
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    assert run.model is not None
    with embedded.storage.open(run.model) as file:
        stored = load(file.read())
    for name, value in weights.items():
        torch.testing.assert_close(stored[name].float(), value, rtol=1e-7, atol=0)


def test_data_uploaded_by_the_python_client_are_trained_on(service: Service, tmp_path: Path) -> None:
    held = arrays(client=np.arange(60) % 4)
    with Client(service.url, service.key) as client:
        dataset = client.upload(held, "mine")
        own = {"kind": "uploaded", "id": dataset.id}
        experiment = client.submit(OWN | {"problem": {"dataset": own, **OWN["problem"]}})
        settings = Settings(
            _env_file=None,
            home=tmp_path,
            database_url=str(service.database.url),
            storage_url=service.storage_url,
        )
        runner = build_runner(settings, "in this process", stopping=lambda: False)
        runner.work()
        runner.close()
        (run,) = client.runs(experiment.id)
        assert (run.status, run.error) == ("succeeded", None)
        rows, _ = _alone(held, tmp_path)
        assert [_measures(row) for row in client.rounds(run.id)] == rows
        client.delete_dataset(dataset.id)


def test_a_data_set_whose_file_is_damaged_or_gone_fails_the_run_and_is_named(
    deployment: Deployment, http: httpx.Client
) -> None:
    for number, told in enumerate(("upload it again", "it may have been deleted")):
        # Contents of their own: the samples of one that was read whole stay in memory.
        made = _submit(http, npz(arrays(features=torch.full((60, 4), float(number)).numpy())))
        (key,) = [key for key in deployment.storage.keys("datasets") if made["dataset"] in key]
        if number:
            deployment.storage.delete(key)
        else:
            deployment.storage.put(key, b"PK, and no more")
        run = _work(deployment, made["experiment"])
        assert (run.status, run.attempts) == (Status.FAILED, 3)
        assert run.error is not None
        assert told in run.error


def test_runs_on_shared_data_go_on_when_access_is_taken_back_and_fail_when_the_data_are_deleted(
    embedded: Deployment,
) -> None:
    url = embedded.environment["FEDQ_DATABASE_URL"]
    ann, ben = (bearer(key_for(url, name, Scope.SUBMIT)) for name in ("ann", "ben"))
    queued = []
    with calling_site(embedded) as http:
        for value in (7.0, 8.0):
            held = npz(arrays(features=np.full((60, 4), value)))
            id = http.post("/v1/datasets", params={"name": "ours"}, content=held, headers=ann).json()["id"]
            path = f"/v1/datasets/{id}"
            http.patch(f"{path}/access", json={"read": ["ben"]}, headers=ann)
            document = OWN | {"problem": {"dataset": {"kind": "uploaded", "id": id}, **OWN["problem"]}}
            made = http.post("/v1/experiments", json=document, headers=ben)
            assert made.status_code == 201, made.text
            queued.append((made.json()["id"], id, path))
        (kept, _, first), (failing, gone, second) = queued
        assert http.patch(f"{first}/access", json={"read": []}, headers=ann).status_code == 200
        assert http.delete(second, headers=ann).status_code == 204
    remove_due(embedded.database, embedded.storage, Event())
    with embedded.runner() as runner:
        runner.work()
    run = embedded.run(kept)
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    run = embedded.run(failing)
    assert run.status is Status.FAILED
    assert f"the uploaded data set {gone} is not in the storage; it may have been deleted" in (
        run.error or ""
    )
