"""Files of pretrained networks: who may upload and use them, what is checked, and how long they are kept."""

import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI
from safetensors.torch import save

from fedcore.data.digest_files import file_name
from fedcore.platform.access import Scope
from fedcore.platform.storage import open_storage
from fedcore.platform.store import Database, keys, removals
from fedcore.platform.uploads.weights import MAX_HEADER_BYTES, MAX_TOKENIZER_BYTES
from fedcore.settings import Settings
from tests.builders.claims import claim
from tests.support.access import key_for
from tests.support.asgi import calling
from workers.weights import UploadedWeights

CONTENT = save({"classifier.weight": torch.ones(3, 2), "classifier.bias": torch.zeros(3)})
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def experiment(digest: str = DIGEST) -> dict[str, Any]:
    return {
        "name": "pretrained",
        "problem": {
            "dataset": {"kind": "digits"},
            "partition": {"kind": "iid", "clients": 2},
            "model": {"kind": "torchvision", "name": "squeezenet1_1", "weights": digest},
        },
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.1, "steps": 2},
        "rounds": 3,
    }


@pytest.fixture
def ann(app: FastAPI, settings: Settings) -> Iterator[httpx.Client]:
    """A client of somebody who may submit."""
    with calling(app, key_for(settings.database, "ann", Scope.SUBMIT)) as client:
        yield client


@pytest.fixture
def bob(app: FastAPI, settings: Settings) -> Iterator[httpx.Client]:
    """A client of somebody else."""
    with calling(app, key_for(settings.database, "bob", Scope.SUBMIT)) as client:
        yield client


def send(client: httpx.Client, content: bytes = CONTENT) -> httpx.Response:
    return client.post("/v1/weights", content=content, headers={"Content-Type": "application/octet-stream"})


def test_uploaded_weights_are_listed_by_digest_and_stored_once(ann: httpx.Client, bob: httpx.Client) -> None:
    sent = send(ann)
    assert sent.status_code == 201, sent.text
    weights = sent.json()
    assert (weights["digest"], weights["tensors"], weights["size_bytes"]) == (DIGEST, 2, len(CONTENT))
    assert send(ann).status_code == 200
    assert ann.get("/v1/weights").json()["items"] == [weights]
    assert ann.get(sent.headers["Location"]).json() == weights
    assert bob.get(sent.headers["Location"]).status_code == 404
    assert bob.delete(sent.headers["Location"]).status_code == 404
    assert ann.delete(sent.headers["Location"]).status_code == 204
    assert ann.get("/v1/weights").json()["items"] == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "safetensors"),
        (CONTENT[:-1], "safetensors"),
        (CONTENT + b"more", "safetensors"),
        (b"\x80\x04\x95" + bytes(100), "safetensors"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "header"),
        (save({}), "no tensors"),
        (b'{"model_type": "gpt2"', "not JSON"),
        (b'{"model_type": "gpt2", "model_type": "gpt2"}', "stands twice"),
        (b"{" + b'"a":[' * 100_000, "not JSON"),
        (b'{"model_type": 1, "model": "gpt2"}', "neither a config.json"),
        (b'{"vocab": {}}' + b" " * MAX_TOKENIZER_BYTES, "exceed"),
    ],
    ids=[
        "empty",
        "cut",
        "longer",
        "pickle",
        "header",
        "no tensors",
        "cut JSON",
        "JSON with a key twice",
        "deep JSON",
        "other JSON",
        "long JSON",
    ],
)
def test_bytes_that_are_no_weights_are_refused(ann: httpx.Client, content: bytes, told: str) -> None:
    refused = send(ann, content)
    assert refused.status_code == 422, refused.text
    assert told in refused.json()["errors"][0]["detail"]


def test_the_quota_of_a_key_counts_weights(app: FastAPI, settings: Settings, rows: Database) -> None:
    with rows.transaction() as session:
        _, token = keys.create(session, owner="eve", scope=Scope.SUBMIT, max_stored_bytes=len(CONTENT) - 1)
    with calling(app, token.text) as eve:
        refused = send(eve)
        assert refused.status_code == 403
        assert "weights" in refused.json()["detail"]
        assert eve.get("/v1/weights").json()["items"] == []
    assert open_storage(settings.storage).keys("weights") == []


def named_by(path: str, digest: str) -> dict[str, Any]:
    """An experiment whose only arm reads a file by its digest, in the field at `path`."""
    language = {
        "dataset": {"kind": "text", "length": 4},
        "model": {"kind": "causal_lm", "architecture": "gpt2", "parameters": 3},
    }
    others: dict[str, dict[str, Any]] = {"problem.dataset.tokenizer": {"problem.dataset.vocabulary": 5}}
    others["problem.model.configuration"] = {"problem.model.architecture": None}
    arm = {"name": "only", path: digest, **others.get(path, {})}
    return {**experiment(), "problem": {**experiment()["problem"], **language}, "sweep": {"arms": [arm]}}


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("problem.model.weights", CONTENT, "weights"),
        ("problem.model.configuration", b'{"model_type": "gpt2", "n_layer": 2}', "configuration"),
        ("problem.dataset.tokenizer", b' {"version": "1.0", "model": {"vocab": {}}}', "tokenizer"),
    ],
)
def test_workers_get_all_files_of_a_network(
    ann: httpx.Client, settings: Settings, rows: Database, path: str, content: bytes, kind: str
) -> None:
    uploaded = send(ann, content).json()
    assert uploaded["content"] == kind
    made = ann.post("/v1/experiments", json=named_by(path, uploaded["digest"]))
    assert made.status_code == 201, made.text
    weights = UploadedWeights(rows, open_storage(settings.storage))
    (copy,) = weights.folder_for(claim(rows)).iterdir()
    assert copy.read_bytes() == content
    assert copy.name == file_name(uploaded["digest"], "safetensors" if kind == "weights" else "json")
    weights.close()


def test_workers_get_the_weights_of_the_owner_until_the_last_experiment_is_deleted(
    ann: httpx.Client, bob: httpx.Client, settings: Settings, rows: Database
) -> None:
    assert send(ann).status_code == 201
    made = ann.post("/v1/experiments", json=experiment())
    assert made.status_code == 201, made.text
    weights = UploadedWeights(rows, open_storage(settings.storage))
    folder = weights.folder_for(claim(rows))
    assert (folder / file_name(DIGEST, "safetensors")).read_bytes() == CONTENT
    assert bob.post("/v1/experiments", json=experiment()).status_code == 201
    others = weights.folder_for(claim(rows))
    assert list(others.iterdir()) == []
    weights.close()
    used = ann.delete(f"/v1/weights/{DIGEST}")
    assert used.status_code == 409
    assert made.json()["id"] in used.json()["detail"]
    assert ann.delete(f"/v1/experiments/{made.json()['id']}").status_code == 204
    assert ann.get(f"/v1/weights/{DIGEST}").status_code == 404
    with rows.transaction() as session:
        assert [path for path, _ in removals.take(session, 10, 1.0) if path.startswith("weights/")]
