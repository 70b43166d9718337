"""Experiments whose specification was accepted once and is rejected today: they can be read, and
not run.
"""

import httpx
import pytest
from sqlalchemy import update

from fedcore.errors import SpecificationError
from fedcore.platform.store import Database
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.spec import ExperimentSpec, stored_arms
from tests.api.histories import TINY, submit
from tests.documents import merged

REJECTED = {"algorithm": {"kind": "fedsplit"}, "compression": {"downlink": {"kind": "rand_k", "k": 1}}}


@pytest.fixture(params=[{}, {"local.lr": [0.1, 0.2]}], ids=["one arm", "a sweep"])
def stored(http: httpx.Client, rows: Database, request: pytest.FixtureRequest) -> str:
    """An experiment of an earlier version whose combination lost its fixed point."""
    made = submit(http, {**TINY, "algorithm": {"kind": "fedsplit"}, "sweep": request.param})
    with rows.transaction() as session:
        record = session.get_one(ExperimentRecord, made["id"])
        document = merged(record.spec, {"compression": REJECTED["compression"]})
        session.execute(
            update(ExperimentRecord).where(ExperimentRecord.id == made["id"]).values(spec=document)
        )
    return str(made["id"])


def test_a_new_submission_of_the_combination_is_rejected(http: httpx.Client) -> None:
    answer = http.post("/v1/experiments", json=merged(TINY, REJECTED))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/compression/downlink"


def test_it_can_be_read_and_compared(http: httpx.Client, stored: str) -> None:
    place = f"/v1/experiments/{stored}"
    for path in (place, f"{place}/results", f"{place}/theory", f"/v1/compare?arm={stored}"):
        answer = http.get(path)
        assert answer.status_code == 200, (path, answer.text)


def test_its_arms_can_be_read_but_not_run(rows: Database, stored: str) -> None:
    with rows.reading() as session:
        document = session.get_one(ExperimentRecord, stored).spec
    assert [arm.name for arm in stored_arms(document)] in (["fedsplit"], ["lr=0.1", "lr=0.2"])
    with pytest.raises(SpecificationError, match="error_feedback: true"):
        ExperimentSpec.model_validate(document)


def test_it_cannot_be_extended(http: httpx.Client, stored: str) -> None:
    answer = http.post(f"/v1/experiments/{stored}/extend", json={"rounds": 50})
    assert answer.status_code == 422
    assert "error_feedback: true" in answer.text
