"""Requests made up from the OpenAPI document, valid and not: every answer must be one that the document describes."""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from requests import Session
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.python.asgi import get_client

from api.app import create_app
from api.probes import Prober
from fedcore.settings import Settings
from fedcore.store import Database, deliveries
from tests.api.histories import TWO_ARMS, submit, write
from tests.documents import Document
from tests.store import acts
from tests.store.acts import report
from tests.store.hooks import listen
from tests.store.test_datasets import keep
from tests.support.access import bearer

AnyCase = Case[Any]
EXAMPLES = 30
PATIENCE_S = 120.0
"""An upload is read by a process of its own, which a busy machine takes its time to start."""
CONFIG = {
    # Of the specification's schema alone this phase would make thousands of requests.
    "phases": {"coverage": {"enabled": False}},
    # What a schema cannot say is refused as well: blocks that do not fit together, an id of another experiment's event, NUL, the
    # twenty-first webhook.
    "operations": [
        {"include-name": name, "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 403, 404, 422]}}}
        for name in (
            "POST /v1/datasets",
            "POST /v1/experiments",
            "PATCH /v1/experiments/{experiment_id}",
            "GET /v1/experiments/{experiment_id}/events",
            "POST /v1/keys",
            "PATCH /v1/keys/{key_id}",
            "POST /v1/webhooks",
            "PATCH /v1/webhooks/{webhook_id}",
        )
    ],
}


def _described() -> Document:
    """The OpenAPI document, bodies as JSON only: Schemathesis writes YAML that is none.

    Nor does it know of keys, which it would garble: all requests carry a valid one. `test_access` goes without, on every route.
    """
    document = create_app(Settings(_env_file=None)).openapi()
    for path in document["paths"].values():
        for operation in path.values():
            operation.get("requestBody", {"content": {}})["content"].pop("application/yaml", None)
            operation.pop("security", None)
    return document


schema = schemathesis.openapi.from_dict(_described(), config=SchemathesisConfig.from_dict(CONFIG))


@pytest.fixture
def known(http: httpx.Client, rows: Database) -> dict[str, str]:
    """Path parameters that lead somewhere: to a finished experiment and one of its runs."""
    made = submit(http, TWO_ARMS)
    held = write(rows, lambda _: [report(round, train_loss=1.0 / round) for round in (1, 2, 3)], 6)
    hook = listen(rows).id
    told = {"webhook_id": hook, "delivery_id": acts.write(rows, deliveries.ping, hook).id}
    return {"dataset_id": keep(rows).id, "experiment_id": made["id"], "run_id": held[0].run_id, "name": "demo", **told}


@pytest.fixture
def session(app: Any) -> Iterator[Session]:
    app.state.prober = Prober(lambda _host, _port: [ip_address("93.184.216.34")])
    with get_client(app) as client:
        yield client


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: AnyCase, known: dict[str, str], session: Session, admin_key: str) -> None:
    assert case.meta is not None
    if case.meta.generation.mode is GenerationMode.POSITIVE:
        case.path_parameters.update({name: value for name, value in known.items() if name in case.path_parameters})
    case.call_and_validate(session=session, headers=bearer(admin_key), timeout=PATIENCE_S)
