"""Experiments listed and read, on both databases."""

from datetime import datetime, timedelta

import httpx
import pytest
from sqlalchemy import update

from fedcore.errors import SpecificationError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec, stored_arms
from tests.builders.claims import claim, commit, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document, merged
from tests.support.access import bearer, key_for


def _names(http: httpx.Client, **parameters: str | int) -> list[str]:
    answer = http.get("/v1/experiments", params=parameters)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


def _submitted(http: httpx.Client, *names: str, **changes: object) -> list[Document]:
    return [submit_over_http(http, {**TINY, "name": name, **changes}) for name in names]


@pytest.mark.usefixtures("database_url")
def test_a_new_experiment_is_queued_and_found_where_the_answer_says(http: httpx.Client) -> None:
    answer = http.post("/v1/experiments", json=TWO_ARMS)
    made = answer.json()
    assert http.get(answer.headers["location"]).json() == made
    assert made["status"] == "queued"
    assert made["progress"] == {
        "rounds_done": 0,
        "rounds_total": 18,
        "fraction": 0.0,
        "runs": {"queued": 6},
        "eta_s": None,
    }
    assert [(arm["index"], arm["name"], arm["settings"]) for arm in made["arms"]] == [
        (0, "lr=0.1", {"local.lr": 0.1}),
        (1, "lr=0.05", {"local.lr": 0.05}),
    ]


@pytest.mark.usefixtures("database_url")
def test_times_are_utc(http: httpx.Client) -> None:
    assert submit_over_http(http)["created_at"].endswith("Z")


@pytest.mark.usefixtures("database_url")
def test_progress_and_the_time_to_go_follow_the_rows(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 10})
    commit(rows, claim(rows), [report(1, seconds=2.0), report(2, seconds=4.0)])
    now = http.get(f"/v1/experiments/{made['id']}").json()
    assert now["status"] == "running"
    assert now["progress"] == {
        "rounds_done": 2,
        "rounds_total": 10,
        "fraction": 0.2,
        "runs": {"running": 1},
        "eta_s": 24.0,
    }


@pytest.mark.usefixtures("database_url")
def test_a_run_that_diverged_counts_as_done(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    end_runs(rows, lambda _: [report(1, diverged=True)], 1)
    now = http.get(f"/v1/experiments/{made['id']}").json()
    assert now["status"] == "succeeded"
    assert now["progress"]["fraction"] == 1.0
    assert now["finished_at"] is not None


@pytest.mark.usefixtures("database_url")
def test_experiments_are_listed_newest_first_a_page_at_a_time(http: httpx.Client) -> None:
    _submitted(http, "a", "b", "c", "d", "e")
    names, cursor = [], None
    while True:
        page = http.get(
            "/v1/experiments", params={"limit": 2} | ({"cursor": cursor} if cursor else {})
        ).json()
        names.append([item["name"] for item in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert names == [["e", "d"], ["c", "b"], ["a"]]


@pytest.mark.usefixtures("database_url")
def test_an_experiment_submitted_between_two_pages_moves_nothing(http: httpx.Client) -> None:
    _submitted(http, "a", "b", "c")
    cursor = http.get("/v1/experiments", params={"limit": 2}).json()["next"]
    _submitted(http, "d")
    assert _names(http, cursor=cursor) == ["a"]


@pytest.mark.usefixtures("database_url")
def test_the_list_is_filtered_by_status_tag_and_name_together(http: httpx.Client) -> None:
    _submitted(http, "a", "b", tags=["x", "y"])
    _submitted(http, "a", "c", tags=["x"])
    cancelled = _submitted(http, "a", tags=["y"])[0]
    http.post(f"/v1/experiments/{cancelled['id']}/cancel")
    assert _names(http, tag="y") == ["a", "b", "a"]
    assert _names(http, name="a", tag="x") == ["a", "a"]
    assert _names(http, status="cancelled") == ["a"]
    assert _names(http, status="queued", name="a", tag="y") == ["a"]
    assert _names(http, name="A") == []


@pytest.mark.usefixtures("database_url")
def test_the_list_is_searched_by_a_part_of_the_name_within_what_is_seen(
    http: httpx.Client, settings: Settings
) -> None:
    _submitted(http, "FedAvg on digits", "FedProx, 50 %", "a_b", tags=["x"])
    assert _names(http, search="FED") == ["FedProx, 50 %", "FedAvg on digits"]
    assert [_names(http, search=text) for text in ("%", "_", "nowhere")] == [["FedProx, 50 %"], ["a_b"], []]
    assert _names(http, search="d", name="FedAvg on digits", tag="x") == ["FedAvg on digits"]
    other = bearer(key_for(settings.database, "bob", Scope.READ))
    assert http.get("/v1/experiments", params={"search": "fed"}, headers=other).json()["items"] == []


@pytest.mark.usefixtures("database_url")
def test_the_list_is_bounded_in_time_including_the_lower_end(http: httpx.Client) -> None:
    made = _submitted(http, "a")[0]
    moment, step = datetime.fromisoformat(made["created_at"]), timedelta(milliseconds=1)
    assert _names(http, created_after=moment.isoformat()) == ["a"]
    assert _names(http, created_after=(moment + step).isoformat()) == []
    assert _names(http, created_before=moment.isoformat()) == []
    assert _names(http, created_before=(moment + step).isoformat()) == ["a"]
    for early in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59.999Z"):
        assert _names(http, created_after=early) == ["a"]
        assert _names(http, created_before=early) == []
    for late in ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"):
        assert _names(http, created_after=late) == []
        assert _names(http, created_before=late) == ["a"]


@pytest.mark.usefixtures("database_url")
def test_a_listed_experiment_says_all_but_specification_arms_notes_and_provenance(http: httpx.Client) -> None:
    made = submit_over_http(http)
    left_out = {"arms", "specification", "notes", "provenance", "missing"}
    (listed,) = http.get("/v1/experiments").json()["items"]
    assert listed == {name: value for name, value in made.items() if name not in left_out}


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"status": "done"}, "?status"),
        ({"limit": "0"}, "?limit"),
        ({"limit": "201"}, "?limit"),
        ({"created_after": "yesterday"}, "?created_after"),
        ({"created_after": "1700000000"}, "?created_after"),
        ({"created_before": "2026-01-01T00:00:00"}, "?created_before"),
        ({"tag": "a\0b"}, "?tag"),
        ({"search": "a\0b"}, "?search"),
    ],
)
def test_a_filter_that_makes_no_sense_is_pointed_at(
    http: httpx.Client, parameters: dict[str, str], pointer: str
) -> None:
    answer = http.get("/v1/experiments", params=parameters)
    assert answer.status_code == 422
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [pointer]


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("id", ["exp_0", "%00", "é", "a%2Fb"])
def test_an_experiment_that_is_not_there_is_not_found(http: httpx.Client, id: str) -> None:
    answer = http.get(f"/v1/experiments/{id}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


# Experiments whose specification was accepted once and is rejected today: they can be read, and not run.

REJECTED = {"algorithm": {"kind": "fedsplit"}, "compression": {"downlink": {"kind": "rand_k", "k": 1}}}


@pytest.fixture(params=[{}, {"local.lr": [0.1, 0.2]}], ids=["one arm", "a sweep"])
def stored(http: httpx.Client, rows: Database, request: pytest.FixtureRequest) -> str:
    """An experiment of an earlier version whose combination lost its fixed point."""
    made = submit_over_http(http, {**TINY, "algorithm": {"kind": "fedsplit"}, "sweep": request.param})
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


def test_rejected_specification_can_be_read_and_compared(http: httpx.Client, stored: str) -> None:
    place = f"/v1/experiments/{stored}"
    for path in (place, f"{place}/results", f"{place}/theory", f"/v1/compare?arm={stored}"):
        answer = http.get(path)
        assert answer.status_code == 200, (path, answer.text)


def test_arms_of_a_rejected_specification_can_be_read_but_not_run(rows: Database, stored: str) -> None:
    with rows.reading() as session:
        document = session.get_one(ExperimentRecord, stored).spec
    assert [arm.name for arm in stored_arms(document)] in (["fedsplit"], ["lr=0.1", "lr=0.2"])
    with pytest.raises(SpecificationError, match="error_feedback: true"):
        ExperimentSpec.model_validate(document)


def test_rejected_specification_cannot_be_extended(http: httpx.Client, stored: str) -> None:
    answer = http.post(f"/v1/experiments/{stored}/extend", json={"rounds": 50})
    assert answer.status_code == 422
    assert "error_feedback: true" in answer.text
