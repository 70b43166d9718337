"""Users' test samples belong to the clients that hold them, in every format, and figures of clients are
taken on them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedcore import ExperimentSpec, Simulation
from fedcore.data.federated import FederatedData
from fedcore.data.uploaded import Local, local_dataset_storage
from fedcore.errors import SpecificationError
from fedcore.platform.uploads.local import keep
from fedq.planning.data import measure_warnings
from tests.documents import Document, merged, specification
from tests.platform.uploads.files import Arrays, arrays, npz, parquet

HELD = arrays(label=np.random.default_rng(5).integers(3, size=60))
OWNERS = [int(name.removeprefix("clinic ")) for name in HELD["client"][HELD["test"]]]
FIGURES = [
    "train_loss",
    "test_loss",
    "test_accuracy",
    "client_accuracy_std",
    "client_accuracy_worst_decile",
    "personal_accuracy",
    "personal_accuracy_std",
    "personal_gain_share",
]


def write_npz(folder: Path) -> Path:
    (folder / "own.npz").write_bytes(npz(HELD))
    return folder / "own.npz"


def write_parquet(folder: Path) -> Path:
    (folder / "own.parquet").write_bytes(parquet(HELD))
    return folder / "own.parquet"


def rows(held: Arrays = HELD) -> list[Document]:
    return [{name: array[row].tolist() for name, array in held.items()} for row in range(60)]


def write_csv(folder: Path) -> Path:
    lines = [
        f"{','.join(map(str, row['features']))},{row['label']},{row['client']},{int(row['test'])}"
        for row in rows()
    ]
    (folder / "own.csv").write_text("\n".join(["a,b,c,d,label,client,test", *lines]))
    return folder / "own.csv"


def write_json(folder: Path) -> Path:
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, rows())))
    return folder / "own.jsonl"


def write_hugging_face(folder: Path) -> Path:
    splits = {
        name: datasets.Dataset.from_list(
            [
                {key: value for key, value in row.items() if key != "test"}
                for row in rows()
                if row["test"] == test
            ]
        )
        for name, test in (("train", False), ("test", True))
    }
    datasets.DatasetDict(splits).save_to_disk(str(folder / "hf"))
    return folder / "hf"


def write_images(folder: Path) -> Path:
    for number, row in enumerate(rows()):
        part = "test" if row["test"] else "train"
        place = folder / "own" / part / row["client"] / str(row["label"])
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), number).save(place / f"{number}.png")
    return folder / "own"


@pytest.mark.parametrize(
    "write", [write_npz, write_parquet, write_csv, write_json, write_hugging_face, write_images]
)
def test_test_samples_of_every_format_belong_to_their_clients(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    spec = Local.model_validate(keep(write(tmp_path), tmp_path))
    data = spec.open(tmp_path, local_dataset_storage(tmp_path), None)
    assert isinstance(data, FederatedData)
    assert data.owners is not None
    assert sorted(data.owners.tolist()) == sorted(OWNERS)


def document(folder: Path, held: Arrays = HELD, **changes: Any) -> Document:
    file = folder / "own.npz"
    file.write_bytes(npz(held))
    own = {
        "name": "own",
        "problem": {"dataset": keep(file, folder), "model": {"kind": "logistic"}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.3, "steps": 2, "batch_size": "full"},
        "rounds": 2,
        "execution": {"precision": "float64", "engine": "reference"},
        "evaluation": {"measures": FIGURES},
    }
    return merged(own, changes)


def last(made: Document, folder: Path) -> tuple[dict[str, Any], Simulation]:
    simulation = Simulation(specification(made), 0, data_dir=folder)
    *_, report = [simulation.advance() for _ in range(simulation.spec.rounds)]
    row: dict[str, Any] = {
        "train_loss": report.train_loss,
        "test_loss": report.test_loss,
        "test_accuracy": report.test_accuracy,
    }
    return {**row, **report.extra}, simulation


def test_accuracies_of_clients_are_those_on_their_test_samples_by_hand(tmp_path: Path) -> None:
    row, simulation = last(document(tmp_path), tmp_path)
    model = {name: value.numpy() for name, value in simulation.model().items()}
    weight, bias = sorted(model.values(), key=lambda value: -value.ndim)
    right = (HELD["features"] @ weight.T + bias).argmax(1) == HELD["label"]
    names = np.unique(HELD["client"])
    own = np.array([right[HELD["test"] & (HELD["client"] == name)].mean() for name in names])
    assert row["client_accuracy_std"] == pytest.approx(own.std(), abs=1e-15)
    assert row["client_accuracy_worst_decile"] == own.min()
    assert row["personal_accuracy"] == pytest.approx(own.mean(), abs=1e-15)
    assert row["test_accuracy"] == pytest.approx(right[HELD["test"]].mean(), abs=1e-15)


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_data_with_clients_are_measured_as_if_drawn_by_key(algorithm: str, tmp_path: Path) -> None:
    made = document(tmp_path, algorithm={"kind": algorithm})
    by_key = merged(made, {"problem": {"partition": {"kind": "by_key", "clients": 7}}})
    assert last(made, tmp_path)[0] == last(by_key, tmp_path)[0]


def test_local_batch_norm_is_tested_with_that_of_the_owner_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedBN over two sites whose features are shifted: the site's own mean and variance apply to its
    test samples.
    """
    monkeypatch.setattr("fedcore.models.imported.Imported.check_allowed", lambda *_: None)
    draw = np.random.default_rng(1)
    site, label = np.arange(60) % 2, np.arange(60) // 2 % 2
    features = draw.normal(size=(60, 3)) + 2 * label[:, None] + 20 * site[:, None]
    held = arrays(features=features, label=label, client=site)
    normalised = {"kind": "import", "path": "tests.models.factories:normalised", "parameters": 8}
    made = merged(
        document(tmp_path, held, local={"steps": 1, "lr": 0.5}, rounds=6),
        {"problem": {"model": {**normalised, "batch_norm": "local"}}},
    )
    row, simulation = last(made, tmp_path)
    first = Simulation(specification(made), 0, data_dir=tmp_path).model()
    linear = nn.Linear(3, 2).double()
    linear.load_state_dict({name: first[f"2.{name}"] for name in ("weight", "bias")})
    norms = [nn.BatchNorm1d(3).double() for _ in range(2)]
    x, y, train = torch.from_numpy(features), torch.from_numpy(label), ~held["test"]
    rows = [np.flatnonzero(train & (site == own)) for own in range(2)]
    for _ in range(6):
        sent = []
        for norm, own in zip(norms, rows, strict=True):
            head = nn.Linear(3, 2).double()
            head.load_state_dict(linear.state_dict())
            loss = nn.functional.cross_entropy(head(norm(x[own])), y[own])
            trained = [*norm.parameters(), *head.parameters()]
            for value, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                value.data -= 0.5 * gradient
            sent.append(head.state_dict())
        share = [len(own) / train.sum() for own in rows]
        linear.load_state_dict(
            {name: share[0] * sent[0][name] + share[1] * sent[1][name] for name in sent[0]}
        )
    losses, right = [], []
    for norm, number in zip(norms, range(2), strict=True):
        own = np.flatnonzero(held["test"] & (site == number))
        scores = linear(norm.eval()(x[own]))
        losses += nn.functional.cross_entropy(scores, y[own], reduction="none").tolist()
        right.append((scores.argmax(1) == y[own]).double().mean().item())
    assert row["test_loss"] == pytest.approx(np.mean(losses), abs=1e-12)
    assert row["client_accuracy_worst_decile"] == min(right)
    assert simulation.model()["2.weight"].numpy() == pytest.approx(linear.weight.detach().numpy(), abs=1e-12)


def test_personal_measures_without_test_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="personal_accuracy is taken on test samples of each client"):
        ExperimentSpec.model_validate(document(tmp_path, arrays(test=None)))


def test_a_plan_tells_that_clients_have_no_test_samples(tmp_path: Path) -> None:
    measures = {"evaluation": {"measures": ["client_accuracy_std"]}}
    made = merged(document(tmp_path), measures)
    assert measure_warnings(specification(made)) == []
    without = merged(document(tmp_path, arrays(test=None), evaluation=measures["evaluation"]), {})
    (warning,) = measure_warnings(specification(without))
    assert warning.startswith("client_accuracy_std: taken on training samples")
