"""An experiment on real data, repeated by a worker: identical to the bit, and different as soon as
a number is not the same.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from fedcore.platform.store import Database
from fedcore.platform.store.tables import RunRecord
from fedcore.settings import Settings
from tests.builders.claims import change_rounds
from tests.builders.specifications import DIGITS, Document, merged
from tests.support.access import key_for
from tests.support.asgi import application, calling
from tests.workers.deployment import Deployment

SUBMITTED = merged(
    DIGITS,
    {
        "participation": {"kind": "uniform", "clients_per_round": 4},
        "seeds": [0, 1],
        "sweep": {"local.optimizer.momentum": [0.0, 0.9]},
    },
)
Tampering = Callable[[Database, str], None]


@pytest.fixture
def http(embedded: Deployment) -> Iterator[httpx.Client]:
    """A client of the service of the deployment."""
    given: dict[str, Any] = {
        name.removeprefix("FEDQ_").lower(): value
        for name, value in embedded.environment.items()
        if name.startswith("FEDQ_")
    }
    with calling(application(Settings(_env_file=None, **given)), key_for(given["database_url"])) as client:
        yield client


@pytest.fixture
def repeated(embedded: Deployment, http: httpx.Client) -> Document:
    """An experiment, and the answer to its repetition, both carried out by a worker."""
    original = http.post("/v1/experiments", json=SUBMITTED).json()
    _work(embedded)
    answer = http.post(f"/v1/experiments/{original['id']}/reproduce")
    assert answer.status_code == 201, answer.text
    _work(embedded)
    return {"original": original, "here": answer.json(), "location": answer.headers["location"]}


def _work(deployment: Deployment) -> None:
    with deployment.runner() as runner:
        runner.work()


def _compared(http: httpx.Client, repeated: Document) -> Document:
    return http.get(f"/v1/experiments/{repeated['here']['id']}/reproduction").json()


def test_a_repetition_is_identical_to_the_bit(http: httpx.Client, repeated: Document) -> None:
    original, here = repeated["original"], repeated["here"]
    assert repeated["location"] == f"/v1/experiments/{here['id']}"
    assert here["provenance"] == original["provenance"] | {"reproduces": original["id"]}
    assert here["specification"] == original["specification"]
    assert _compared(http, repeated) == {
        "experiment_id": here["id"],
        "reproduces": original["id"],
        "outcome": "identical",
        "runs": 4,
        "unmatched": 0,
        "rounds": 12,
        "models": 4,
        "differing": [],
        "made_otherwise": [],
        "error": None,
    }


def _a_bit_of_a_row(database: Database, run_id: str) -> None:
    def changed(rows: list[Document]) -> list[Document]:
        rows[1]["test_loss"] *= 1 + 2**-52
        return rows

    change_rounds(database, run_id, changed)


def _a_model(database: Database, run_id: str) -> None:
    with database.transaction() as session:
        run = session.get_one(RunRecord, run_id)
        run.provenance = run.provenance | {
            "model_sha256": "0" * 64,
            "versions": run.provenance["versions"] | {"torch": "1.0"},
        }


@pytest.mark.parametrize(
    ("tamper", "round", "measure"), [(_a_bit_of_a_row, 2, "test_loss"), (_a_model, 3, "model_sha256")]
)
def test_a_single_bit_that_differs_is_found_with_its_place(
    embedded: Deployment, http: httpx.Client, repeated: Document, tamper: Tampering, round: int, measure: str
) -> None:
    changed = embedded.runs(repeated["here"]["id"])[2]
    tamper(embedded.database, changed.id)
    found = _compared(http, repeated)
    assert found["outcome"] == "different"
    (difference,) = found["differing"]
    told = {name: difference[name] for name in ("arm", "arm_name", "seed", "run_id", "round", "measure")}
    assert told == {
        "arm": 1,
        "arm_name": "momentum=0.9",
        "seed": 0,
        "run_id": changed.id,
        "round": round,
        "measure": measure,
    }
    if measure == "test_loss":
        assert 0 < difference["relative"] < 2**-51
        assert found["made_otherwise"] == []
    else:
        assert (difference["here"], difference["relative"]) == ("0" * 64, None)
        assert [(one["what"], one["here"], one["runs"]) for one in found["made_otherwise"]] == [
            ("versions.torch", '"1.0"', 1)
        ]
