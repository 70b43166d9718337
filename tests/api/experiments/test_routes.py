"""Documents that `POST /v1/experiments` accepts and rejects."""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import httpx
import pytest

from fedcore import presets
from fedcore.platform.store import Database, runs, workers
from fedcore.platform.version import find_commit
from fedcore.spec.digest import specification_sha256
from tests.builders.claims import claimant
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, Document, merged
from tests.builders.transactions import write

IMAGES: Document = {
    "name": "images",
    "problem": {
        "dataset": {"kind": "mnist"},
        "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.1},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 1},
    "participation": {"kind": "uniform", "clients_per_round": 10},
    "rounds": 10,
}
SYNTHETIC: Document = {"kind": "synthetic", "clients": 30}


def _refusal(http: httpx.Client, document: Document, status: int = 422) -> dict[str, str]:
    """Error messages for `document` by pointer."""
    answer = http.post("/v1/experiments", json=document)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return {flaw["pointer"]: flaw["detail"] for flaw in answer.json()["errors"]}


def test_the_specification_is_answered_with_every_default_written_out_and_can_be_submitted_again(
    http: httpx.Client,
) -> None:
    made = submit_over_http(http)
    assert made["specification"]["execution"]["priority"] == 5
    assert submit_over_http(http, made["specification"])["specification"] == made["specification"]


def test_a_preset_is_submitted_by_name_with_overrides(http: httpx.Client) -> None:
    changes = {
        "rounds": 5,
        "seeds": [7],
        "sweep": None,
        "algorithm": {"kind": "fedprox", "mu": 1.0},
        "problem": {"model": {"kind": "logistic"}},
    }
    made = submit_over_http(http, {"preset": "demo", "overrides": changes})
    specification = made["specification"]
    assert (specification["rounds"], specification["seeds"], specification["sweep"]) == (5, [7], {})
    assert specification["algorithm"]["mu"] == 1.0
    assert specification["problem"]["model"] == {"kind": "logistic", "l2": 0.0}
    assert specification["local"]["epochs"] == presets.load("demo").spec["local"]["epochs"]
    assert made["provenance"] == {
        "fedq": version("fedq"),
        "commit": find_commit(),
        "preset": "demo",
        "preset_version": 1,
        "overrides": changes,
        "specification_sha256": specification_sha256(specification),
    }


def test_a_preset_that_is_not_there_is_pointed_at_with_those_that_are(http: httpx.Client) -> None:
    refusal = _refusal(http, {"preset": "domo"})["/preset"]
    assert refusal.startswith("there is no preset 'domo'; the nearest are demo, ")
    assert refusal.endswith(f"(of {len(presets.names())})")


@pytest.mark.parametrize(
    ("overrides", "pointer"),
    [
        ({"round": 5}, "/overrides/round"),
        ({"local": {"lr": -1}}, "/overrides/local/lr"),
        ({"seeds": [1, 1]}, "/overrides/seeds"),
    ],
)
def test_a_flaw_in_the_overrides_is_pointed_at_there(
    http: httpx.Client, overrides: Document, pointer: str
) -> None:
    assert list(_refusal(http, {"preset": "demo", "overrides": overrides})) == [pointer]


def test_an_unknown_field_is_named_wherever_it_stands(http: httpx.Client) -> None:
    document = merged(
        TINY, {"colour": "red", "local": {"batchsize": 3}, "algorithm": {"kind": "fedprox", "muu": 0.1}}
    )
    refusal = _refusal(http, document)
    assert refusal.pop("/colour").startswith(
        "unknown field; known fields: aggregator, algorithm, asynchrony, code, "
    )
    assert refusal == {
        "/local/batchsize": "unknown field; did you mean batch_size?",
        "/algorithm/muu": "unknown field; did you mean mu?",
    }


def test_every_missing_field_is_named(http: httpx.Client) -> None:
    assert _refusal(http, {"name": "x"}) == dict.fromkeys(
        ("/problem", "/algorithm", "/local", "/rounds"), "required"
    )


def test_an_unknown_kind_is_answered_with_those_that_are_known(http: httpx.Client) -> None:
    (detail,) = [_refusal(http, merged(TINY, {"algorithm": {"kind": "fedsgd"}}))["/algorithm/kind"]]
    assert detail.startswith("must be one of 'fedavg', 'fedprox', ")
    assert detail.endswith("not 'fedsgd'; did you mean 'fedsvrg'?")
    assert "'fedavg', 'fedprox'" in detail


@pytest.mark.parametrize(
    ("base", "changes", "pointer", "hint"),
    [
        (TINY, {"rounds": 10**9}, "/rounds", "less than or equal to 1000000, not 1000000000"),
        (TINY, {"seeds": list(range(20_000))}, "/seeds", "at most"),
        (
            TINY,
            {"sweep": {"local.lr": [0.1] * 300, "rounds": list(range(1, 300))}},
            "/sweep",
            "exceed the limit of 10000",
        ),
        (
            TINY,
            {"problem": {"dataset": {"generate": {"dim": 10**7}}}},
            "/problem/dataset/generate/dim",
            "less than or equal to 10000",
        ),
        (
            IMAGES,
            {"problem": {"partition": {"clients": 10**9}}},
            "/problem/partition/clients",
            "less than or equal to 1000000",
        ),
        (
            IMAGES,
            {"problem": {"partition": {"clients": 10_000}}},
            "/problem/partition",
            "exceed the 60000 available samples",
        ),
        (
            IMAGES,
            {"participation": {"clients_per_round": 101}},
            "/participation/clients_per_round",
            "use at most 100",
        ),
        (IMAGES, {"problem": {"dataset": SYNTHETIC}}, "/problem", "omit `partition`"),
        (
            IMAGES,
            {"compression": {"uplink": {"kind": "top_k", "k": 7_851}}},
            "/compression/uplink",
            "use at most 7850",
        ),
        (
            IMAGES,
            {"compression": {"downlink": {"kind": "rand_k", "k": 1, "ratio": 0.5}}},
            "/compression/downlink",
            "give the level as one of",
        ),
        (
            IMAGES,
            {"compression": {"uplink": {"kind": "qsgd", "levels": 2.5}}},
            "/compression/uplink/levels",
            "2.5",
        ),
        (
            IMAGES,
            {"problem": {"model": {"kind": "cnn", "norm": "batch"}}},
            "/problem/model/norm",
            "batch norm is not supported",
        ),
        (
            IMAGES,
            {"problem": {"partition": {"kind": "classes_per_client", "clients": 10, "classes": 11}}},
            "/problem/partition/classes",
            "10",
        ),
        (IMAGES, {"local": {"steps": 3}}, "/local", "give `epochs` or `steps`, not both"),
    ],
)
def test_specifications_that_cannot_be_run_are_refused_with_the_remedy(
    http: httpx.Client, base: Document, changes: Document, pointer: str, hint: str
) -> None:
    refusal = _refusal(http, merged(base, changes))
    assert list(refusal) == [pointer]
    assert hint in refusal[pointer]


def test_a_refused_submission_leaves_nothing_behind(http: httpx.Client) -> None:
    _refusal(http, {"name": "x"})
    assert http.get("/v1/experiments").json()["items"] == []


def test_a_dry_run_says_what_would_be_done_and_stores_nothing(http: httpx.Client) -> None:
    answer = http.post("/v1/experiments?dry_run=true", json={"preset": "demo"})
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["runs"], plan["rounds"], len(plan["arms"])) == (12, 720, 4)
    assert plan["specification"]["name"] == "demo"
    assert http.get("/v1/experiments").json()["items"] == []


def test_a_queue_that_nobody_serves_is_told_before_and_after_submission(
    http: httpx.Client, rows: Database
) -> None:
    document = {**TINY, "execution": {"queue": "gpu"}}
    (warning,) = http.post("/v1/experiments?dry_run=true", json=document).json()["warnings"]
    assert "no worker currently serves the queue 'gpu'" in warning
    made = http.post("/v1/experiments", json=document).json()["id"]
    (run,) = http.get(f"/v1/experiments/{made}/runs").json()["items"]
    assert (
        run["waits_for"]
        == http.get(f"/v1/runs/{run['id']}").json()["waits_for"]
        == "no worker currently serves the queue 'gpu'"
    )
    write(
        rows, workers.seen, "worker-1", host="here", pid=7, queues=["cpu", "gpu"], device="cpu", run_id=None
    )
    assert http.post("/v1/experiments?dry_run=true", json=document).json()["warnings"] == []
    assert http.get(f"/v1/runs/{run['id']}").json()["waits_for"] is None
    assert write(rows, runs.claim, claimant("worker-1", "cpu", "gpu"), 60.0) is not None


def test_a_repeat_with_the_same_key_and_document_returns_the_first_experiment(
    http: httpx.Client, database_url: str
) -> None:
    headers = {"Idempotency-Key": "k-1", "Content-Type": "application/json"}
    first = http.post("/v1/experiments", json=TINY, headers=headers)
    again = http.post("/v1/experiments", content=json.dumps(TINY, indent=4, sort_keys=True), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == again.headers["location"]
    assert len(http.get("/v1/experiments").json()["items"]) == 1
    http.post(f"/v1/experiments/{first.json()['id']}/cancel")
    later = http.post("/v1/experiments", json=TINY, headers=headers)
    assert later.json() == http.get(later.headers["location"]).json(), "as it is now"


def test_repeats_at_once_make_one_experiment(http: httpx.Client, database_url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda _: http.post("/v1/experiments", json=TINY, headers={"Idempotency-Key": "k-1"}),
                range(8),
            )
        )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(http.get("/v1/experiments").json()["items"]) == 1


def test_a_key_used_for_another_document_is_refused(http: httpx.Client, database_url: str) -> None:
    made = http.post("/v1/experiments", json=TINY, headers={"Idempotency-Key": "k-1"}).json()
    answer = http.post("/v1/experiments", json={**TINY, "rounds": 4}, headers={"Idempotency-Key": "k-1"})
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:fedq:problem:idempotency"
    assert made["id"] in answer.json()["detail"]


def test_without_a_key_every_submission_is_another_experiment(http: httpx.Client) -> None:
    assert submit_over_http(http)["id"] != submit_over_http(http)["id"]


@pytest.mark.parametrize("key", ["", "ü", "x" * 201])
def test_a_key_that_is_none_is_refused(http: httpx.Client, key: str) -> None:
    answer = http.post("/v1/experiments", json=TINY, headers=[(b"Idempotency-Key", key.encode("latin-1"))])
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "Idempotency-Key"


def test_new_experiments_are_evaluated_at_the_default_interval_unless_they_give_one(
    http: httpx.Client,
) -> None:
    wanted = merged(
        IMAGES,
        {
            "problem": {"dataset": {"kind": "cifar10"}, "model": {"kind": "cnn"}},
            "rounds": 1_000,
        },
    )
    plan = http.post("/v1/experiments", params={"dry_run": True}, json=wanted).json()
    made = submit_over_http(http, wanted)
    assert made["specification"]["evaluation"]["every"] == 5
    assert plan["specification"] == made["specification"]
    given = submit_over_http(http, merged(wanted, {"evaluation": {"every": 1}}))
    assert given["specification"]["evaluation"]["every"] == 1
    # What was stored is said again, and keeps its meaning.
    again = submit_over_http(http, given["specification"] | {"name": "again"})
    assert again["specification"]["evaluation"]["every"] == 1
    small = submit_over_http(http, merged(wanted, {"problem": {"dataset": {"kind": "digits"}}, "rounds": 2}))
    assert small["specification"]["evaluation"]["every"] == 1


def test_new_experiments_estimate_the_training_loss_and_presets_evaluate_it_in_full(
    http: httpx.Client,
) -> None:
    wanted = merged(IMAGES, {"problem": {"dataset": {"kind": "digits"}}})
    made = submit_over_http(http, wanted)
    assert made["specification"]["evaluation"]["training_loss"] == "sample"
    assert (
        http.post("/v1/experiments", params={"dry_run": True}, json=wanted).json()["specification"]
        == (made["specification"])
    )
    full = submit_over_http(http, merged(wanted, {"evaluation": {"training_loss": "full"}}))
    assert full["specification"]["evaluation"]["training_loss"] == "full"
    assert submit_over_http(http, {"preset": "demo"})["specification"]["evaluation"]["training_loss"] is None
