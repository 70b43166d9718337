"""`/v1/webhooks`: made with a secret that is shown once, only for where the service may go."""

import json
from ipaddress import ip_address
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI

from api.webhooks.service import UrlValidator
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, webhooks
from fedcore.platform.store.webhooks import MOST_PER_OWNER
from fedcore.platform.webhooks.events import ENDINGS, EventKind
from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import Document
from tests.builders.transactions import read
from tests.builders.webhooks import BAD, GOOD, claim_delivery, pending_deliveries, pending_kinds
from tests.platform.store.test_webhook_deliveries import conclude, let_pass
from tests.support.access import key_for
from tests.support.asgi import application, calling
from tests.support.described import described

HOOKS, URL = "/v1/webhooks", "https://hooks.example.org/fedq"
NAMES = {
    "hooks.example.org": "93.184.216.34",
    "inside.example.org": "10.0.0.7",
    "metadata.example.org": "169.254.169.254",
}


def look_up(host: str, port: int) -> list[Any]:
    if host not in NAMES:
        raise OSError
    return [ip_address(NAMES[host])]


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return application(settings, UrlValidator(look_up))


def make(http: httpx.Client, **fields: Any) -> Document:
    answer = http.post(HOOKS, json={"url": URL, **fields})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{HOOKS}/{answer.json()['id']}"
    return answer.json()


def test_a_webhook_is_made_shown_without_its_secret_changed_and_deleted(http: httpx.Client) -> None:
    experiment = submit_over_http(http)["id"]
    made = make(http, name="chat", experiment_id=experiment)
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert (made["events"], made["enabled"], made["owner"]) == (list(ENDINGS), True, "local")
    assert (made["experiment_id"], made["last_delivery"]) == (experiment, None)
    path = f"{HOOKS}/{made['id']}"
    answers = [http.get(path), http.get(HOOKS)]
    assert [answers[0].json(), answers[1].json()["items"]] == [made, [made]]
    changed = http.patch(path, json={"events": ["run.failed"], "experiment_id": None, "name": None}).json()
    assert changed == made | {"events": ["run.failed"], "experiment_id": None}
    assert http.patch(path, json={}).json() == changed
    assert http.delete(path).status_code == 204
    assert [
        http.get(path).status_code,
        http.delete(path).status_code,
        http.patch(path, json={"name": "x"}).status_code,
    ] == [404] * 3
    assert not any(secret in answer.text for answer in answers)


@pytest.mark.parametrize(
    ("change", "pointer", "told_of"),
    [
        ({"url": "http://hooks.example.org/hunter2"}, "/url", "needs https://"),
        ({"url": "https://ann:hunter2@hooks.example.org/"}, "/url", "user or a password"),
        (
            {"url": "https://inside.example.org/hunter2"},
            "/url",
            "(private); the operator allows networks by FEDQ_WEBHOOK_NETWORKS",
        ),
        ({"url": "https://metadata.example.org/hunter2"}, "/url", "(link-local)"),
        ({"url": "https://nowhere.example.org/hunter2"}, "/url", "cannot resolve"),
        ({"url": "hunter2"}, "/url", "https://host/path"),
        ({"url": ""}, "/url", "at least 1"),
        ({"url": None}, "/url", "string"),
        ({"events": []}, "/events", "at least 1"),
        ({"events": ["run.exploded"]}, "/events/0", "run.failed"),
        ({"events": ["webhook.ping"]}, "/events/0", "run.failed"),
        ({"experiment_id": "exp_0"}, "/experiment_id", "no experiment"),
        ({"secret": "whsec_mine"}, "/secret", "unknown field"),
        ({"event": ["run.failed"]}, "/event", "did you mean events"),
        ({"tag": "thesis"}, "/tag", "unknown field"),
    ],
)
def test_invalid_webhooks_are_refused_by_the_field_and_no_url_is_repeated(
    http: httpx.Client, change: Document, pointer: str, told_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = http.post(HOOKS, json={"url": URL} | change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert told_of in answer.json()["errors"][0]["detail"]
    assert "hunter2" not in answer.text.replace("not 'hunter2'", "") + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("change", "pointer"), [({"url": "https://inside.example.org/"}, "/url"), ({"enabled": "no"}, "/enabled")]
)
def test_a_change_is_looked_at_as_closely(http: httpx.Client, change: Document, pointer: str) -> None:
    made = make(http)
    answer = http.patch(f"{HOOKS}/{made['id']}", json=change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert http.get(f"{HOOKS}/{made['id']}").json()["url"] == URL


def test_receivers_that_the_operator_allows_may_be_told(settings: Settings, admin_key: str) -> None:
    configured = Settings(
        _env_file=None,
        home=settings.home,
        database_url=settings.database_url,
        webhook_networks=("127.0.0.0/8",),
    )
    with calling(application(configured), admin_key) as http:
        assert make(http, url="http://127.0.0.1:8000/x")["url"] == "http://127.0.0.1:8000/x"


def test_an_owner_has_as_many_as_there_may_be(http: httpx.Client) -> None:
    for _ in range(MOST_PER_OWNER):
        make(http)
    answer = http.post(HOOKS, json={"url": URL})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:fedq:problem:quota")
    assert f"the limit is {MOST_PER_OWNER}" in answer.json()["detail"]


def test_nobody_listens_to_experiments_of_others_and_administrators_change_all(
    app: FastAPI, settings: Settings, http: httpx.Client
) -> None:
    with calling(app, key_for(settings.database, "ann", Scope.SUBMIT)) as ann:
        anns, locals_ = submit_over_http(ann)["id"], submit_over_http(http)["id"]
        made = make(ann, experiment_id=anns)
        assert (
            ann.post(HOOKS, json={"url": URL, "experiment_id": locals_}).json()["errors"][0]["pointer"]
            == "/experiment_id"
        )
        assert http.patch(f"{HOOKS}/{made['id']}", json={"name": "seen to"}).json()["owner"] == "ann"
        assert http.patch(f"{HOOKS}/{made['id']}", json={"experiment_id": locals_}).status_code == 422
        assert ann.get(HOOKS).json()["items"] == http.get(HOOKS).json()["items"]


def test_a_ping_and_what_became_of_it(http: httpx.Client, rows: Database) -> None:
    path = f"{HOOKS}/{make(http)['id']}"
    answer = http.post(f"{path}/ping")
    assert answer.status_code == 202
    pinged = answer.json()
    assert (pinged["status"], pinged["attempted_at"], pinged["error"]) == ("pending", None, None)
    assert http.get(path).json()["last_delivery"] is None
    conclude(rows, claim_delivery(rows), BAD)
    hook = http.get(path).json()
    last = hook["last_delivery"]
    assert (last["id"], last["status"], last["error"]) == (pinged["id"], "pending", "the answer was 500")
    assert pinged["next_attempt_at"] <= last["attempted_at"] < last["next_attempt_at"]
    assert hook["failing_since"] is not None
    let_pass(rows, failures=100)
    conclude(rows, claim_delivery(rows), BAD)
    last = http.get(path).json()["last_delivery"]
    assert (last["status"], last["next_attempt_at"]) == ("failed", None)
    again = http.post(f"{path}/ping").json()
    conclude(rows, claim_delivery(rows), GOOD)
    hook = http.get(HOOKS).json()["items"][0]
    last = hook["last_delivery"]
    assert (last["id"], last["status"], last["error"]) == (again["id"], "delivered", None)
    assert hook["failing_since"] is None


def test_a_disabled_webhook_is_told_nothing_until_it_is_enabled(http: httpx.Client, rows: Database) -> None:
    made = make(http, events=["experiment.queued"])
    path = f"{HOOKS}/{made['id']}"
    http.post(f"{path}/ping")
    conclude(rows, claim_delivery(rows), BAD)
    disabled = http.patch(path, json={"enabled": False}).json()
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "its owner disabled it")
    last = disabled["last_delivery"]
    assert (last["status"], last["next_attempt_at"]) == ("failed", None)
    assert http.post(f"{path}/ping").status_code == 409
    submit_over_http(http)
    assert http.patch(path, json={"enabled": True}).json()["disabled_reason"] is None
    submit_over_http(http)
    assert pending_kinds(rows, read(rows, webhooks.find, made["id"])) == ["experiment.queued"]


def test_every_change_of_a_webhook_is_in_the_audit_log_and_no_url_is(http: httpx.Client) -> None:
    id = make(http, url=f"{URL}?token=hunter2")["id"]
    path = f"{HOOKS}/{id}"
    http.post(f"{path}/ping")
    http.patch(path, json={"name": "x"})
    http.delete(path)
    log = http.get("/v1/audit", params={"target": id})
    assert [entry["action"] for entry in reversed(log.json()["items"])] == [
        "POST /v1/webhooks",
        "POST /v1/webhooks/{webhook_id}/ping",
        "PATCH /v1/webhooks/{webhook_id}",
        "DELETE /v1/webhooks/{webhook_id}",
    ]
    assert "hunter2" not in log.text
    assert "whsec_" not in log.text


def test_the_openapi_document_describes_the_messages(http: httpx.Client, rows: Database) -> None:
    document = described()
    components = document["components"]["schemas"]
    id = make(http, events=[*EventKind])["id"]
    submit_over_http(http)
    http.post(f"{HOOKS}/{id}/ping")
    sent = [json.loads(row.body) for row in pending_deliveries(rows, read(rows, webhooks.find, id))]
    assert {message["type"] for message in sent} == {"webhook.ping", "experiment.queued", "run.queued"}
    for message in sent:
        name = "ping" if message["type"] == "webhook.ping" else message["type"].partition(".")[0]
        body = document["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(message, {**body, "components": document["components"]})
        about = components[body["$ref"].rpartition("/")[2]]["properties"]["data"]["$ref"].rpartition("/")[2]
        assert message["data"].keys() == components[about]["properties"].keys()
