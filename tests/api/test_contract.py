"""Requests made up from the OpenAPI document, valid and not, one by one and in chains along links
that are added here, on both databases and with keys of each scope: every answer must be one that
the document describes, and none a fault of the service.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import settings as bounds
from requests import Session
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.python.asgi import get_client

from api.app import create_app
from api.webhooks.service import UrlValidator
from fedcore.platform.access import Scope
from fedcore.platform.store import open_database
from fedcore.settings import Settings
from tests.builders import experiments
from tests.builders.claims import end_runs, report
from tests.builders.specifications import TWO_ARMS, Document
from tests.builders.webhooks import create_webhook
from tests.conftest import DATABASES
from tests.platform.store.test_datasets import keep
from tests.support.access import bearer, key_for
from tests.support.described import described
from tests.support.postgresql import fresh_database

pytestmark = pytest.mark.slow

AnyCase = Case[Any]
EXAMPLES, UPLOADS = 24, 4
"""Of each operation; each upload is read by a process of its own."""
PATIENCE_S = 120.0
"""A busy machine takes its time to start such a process."""
CHAINS, STEPS = 6, 16
UNLINKED = ["GET /v1/experiments/{experiment_id}/events", "POST /v1/datasets", "POST /v1/weights"]
"""Operations in no chain: a stream, which would not end where no worker is, and uploads, of which
those that are made up make nothing.
"""
NOT_ALWAYS = [
    *(f"GET /v1/experiments/{{experiment_id}}/{part}" for part in ("claims", "reproduction", "search")),
    *(f"GET /v1/runs/{{run_id}}/{part}" for part in ("model", "checkpoint")),
]
"""Resources that not every experiment and run has."""
SCOPES = (Scope.ADMIN, Scope.ADMIN, Scope.ADMIN, Scope.SUBMIT, Scope.READ, None)
"""Of the keys that are used, mostly one that allows anything; None: no key."""
CONFIG = {
    # Of the specification's schema alone the phase of coverage would make thousands of requests.
    # Links are those of the document.
    "phases": {"coverage": {"enabled": False}, "stateful": {"inference": {"algorithms": []}}},
    "generation": {"max-examples": EXAMPLES},
    # What a schema cannot say is refused as well: blocks that do not fit together, fewer rounds
    # than there are, an id of another experiment's event, NUL, the twenty-first webhook, an
    # idempotency key that another request has used.
    "operations": [
        *(
            {"include-name": name, "generation": {"max-examples": UPLOADS}}
            for name in ("POST /v1/datasets", "POST /v1/weights")
        ),
        *(
            {"include-name": name, "checks": {"ensure_resource_availability": {"enabled": False}}}
            for name in NOT_ALWAYS
        ),
        *(
            {
                "include-name": name,
                "checks": {
                    "positive_data_acceptance": {"expected-statuses": ["2xx", 401, 403, 404, 409, 412, 422]}
                },
            }
            for name in (
                "POST /v1/datasets",
                "POST /v1/weights",
                "POST /v1/experiments",
                "POST /v1/imports",
                "PATCH /v1/experiments/{experiment_id}",
                "DELETE /v1/experiments/{experiment_id}",
                "PATCH /v1/experiments/{experiment_id}/access",
                "PATCH /v1/datasets/{dataset_id}/access",
                "PATCH /v1/bundles/{bundle_digest}/access",
                "PATCH /v1/weights/{weights_digest}/access",
                "PATCH /v1/runs/{run_id}",
                "POST /v1/experiments/{experiment_id}/extend",
                "POST /v1/experiments/{experiment_id}/reproduce",
                "GET /v1/experiments/{experiment_id}/events",
                "GET /v1/experiments/{experiment_id}/results",
                "GET /v1/experiments/{experiment_id}/figure.{form}",
                "GET /v1/arms",
                "GET /v1/compare",
                "GET /v1/compare/figure.{form}",
                "POST /v1/keys",
                "PATCH /v1/keys/{key_id}",
                "POST /v1/webhooks",
                "PATCH /v1/webhooks/{webhook_id}",
            )
        ),
    ],
}
BOUNDS = bounds(phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))


FIRST_ID = "$response.body#/items/0/id"
ID = "$response.body#/id"
SOURCES = (
    ("/v1/experiments", "post", "201", "experiment_id", ID),
    ("/v1/experiments/{experiment_id}/runs", "get", "200", "run_id", FIRST_ID),
    ("/v1/datasets", "post", "201", "dataset_id", ID),
    ("/v1/webhooks", "post", "201", "webhook_id", ID),
    ("/v1/keys", "post", "201", "key_id", ID),
)
"""Answers with the id of a resource, the parameter of the operations on it, and where the id is."""


def _link(document: Document) -> None:
    """Add links from each source to the operations on its resource."""
    for source, method, status, parameter, place in SOURCES:
        given = {name: f"$request.path.{name}" for name in _parameters(source)} | {parameter: place}
        document["paths"][source][method]["responses"][status]["links"] = {
            operation["operationId"]: {
                "operationId": operation["operationId"],
                "parameters": {name: given[name] for name in _parameters(path)},
            }
            for path, operations in document["paths"].items()
            if parameter in _parameters(path) and set(_parameters(path)) <= given.keys()
            for operation in operations.values()
        }


def _parameters(path: str) -> list[str]:
    """The parameters of a path, except `form`, which has a fixed set of values."""
    return [name for name in re.findall(r"{(\w+)}", path) if name != "form"]


def _described() -> Document:
    """The OpenAPI document with links, bodies as JSON only: Schemathesis writes YAML that is none.

    Nor does it know of keys, which it would garble: here they are valid, or none. `test_access` has
    all others, on every route.
    """
    document = deepcopy(described())
    for path in document["paths"].values():
        for operation in path.values():
            operation.get("requestBody", {"content": {}})["content"].pop("application/yaml", None)
            operation.pop("security", None)
    _link(document)
    return document


def _examples(operation: Document) -> list[Document]:
    """Those of its body."""
    return [
        example["value"]
        for example in operation["requestBody"]["content"]["application/json"]["examples"].values()
    ]


schema = schemathesis.openapi.from_dict(_described(), config=SchemathesisConfig.from_dict(CONFIG))
MADE = ("/v1/experiments", "/v1/webhooks", "/v1/keys")
BODIES = {f"POST {path}": _examples(schema.raw_schema["paths"][path]["post"]) for path in MADE}
"""Valid bodies: generated ones are accepted so rarely that hardly a chain would begin."""


class Stock(NamedTuple):
    """A database in use, to be copied."""

    copied: Callable[[Path], Any]
    """A context manager: the URL of a copy."""
    known: dict[str, str]
    """Path parameters that lead somewhere: to a finished experiment and one of its runs, among
    others.
    """
    keys: dict[Scope, str]


@pytest.fixture(scope="module")
def stocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stock]]:
    """One of each kind."""
    file = Path(
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path_factory.mktemp("stock") / "fedq.db")
    )
    server, name = request.getfixturevalue("postgresql_server"), f"fedq_stock_{uuid4().hex}"
    with fresh_database(server, name, request.getfixturevalue("postgresql_template")) as url:
        yield [
            Stock(lambda folder: _copied_file(file, folder), *_filled(f"sqlite:///{file}")),
            Stock(lambda _: fresh_database(server, f"fedq_{uuid4().hex}", name), *_filled(url)),
        ]


def _filled(url: str) -> tuple[dict[str, str], dict[Scope, str]]:
    database = open_database(url)
    made = experiments.submit(database, TWO_ARMS)
    held = end_runs(database, lambda _: [report(round, train_loss=1.0 / round) for round in (1, 2, 3)], 6)
    hook = create_webhook(database).id
    known = {
        "dataset_id": keep(database).id,
        "experiment_id": made.id,
        "run_id": held[0].run_id,
        "name": "demo",
        "webhook_id": hook,
    }
    database.close()
    return known, {scope: key_for(url, scope=scope) for scope in Scope}


@contextmanager
def _copied_file(file: Path, folder: Path) -> Iterator[str]:
    yield f"sqlite:///{shutil.copy(file, folder / f'{uuid4().hex}.db')}"


class Service(NamedTuple):
    """The application on a database."""

    session: Session
    known: dict[str, str]
    keys: dict[Scope, str]

    def headers(self, scope: Scope | None) -> dict[str, str]:
        """Of whoever has a key of this scope, or none."""
        return bearer(self.keys[scope]) if scope else {}


@contextmanager
def _serving(stock: Stock, folder: Path) -> Iterator[Service]:
    with stock.copied(folder) as url:
        validator = UrlValidator(lambda _host, _port: [ip_address("93.184.216.34")])
        app: Any = create_app(Settings(_env_file=None, home=folder, database_url=url), validator)
        with get_client(app) as session:
            yield Service(session, stock.known, stock.keys)


@pytest.fixture
def services(stocks: list[Stock], tmp_path: Path) -> Iterator[list[Service]]:
    with ExitStack() as running:
        yield [running.enter_context(_serving(stock, tmp_path)) for stock in stocks]


@pytest.mark.nightly
@schema.parametrize()
@BOUNDS
def test_every_answer_is_as_described(case: AnyCase, services: list[Service]) -> None:
    for service, scope in _askers(case, services):
        if case.meta and case.meta.generation.mode is GenerationMode.POSITIVE:
            case.path_parameters.update(
                {name: value for name, value in service.known.items() if name in case.path_parameters}
            )
        case.call_and_validate(session=service.session, headers=service.headers(scope), timeout=PATIENCE_S)


def _askers(case: AnyCase, services: list[Service]) -> Sequence[tuple[Service, Scope | None]]:
    """Where the request goes, and whose it is: the same whenever it is repeated.

    Where an operation knows only one, all send it.
    """
    everybody, drawn = (
        list(product(services, SCOPES)),
        _digest(case.path_parameters, case.query, case.headers, case.body),
    )
    several = case.operation.body or any(case.operation.iter_parameters())
    return [everybody[drawn % len(everybody)]] if several else everybody


def _digest(*parts: object) -> int:
    return crc32(repr(parts).encode())


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.nightly), "postgresql"])
def test_every_answer_along_the_links_is_as_described(stocks: list[Stock], kind: str, tmp_path: Path) -> None:
    with _serving(stocks[DATABASES.index(kind)], tmp_path) as service:

        class Chain(schema.exclude(name=UNLINKED).as_state_machine()):  # type: ignore[misc]
            def before_call(self, case: AnyCase) -> None:
                if case.operation.label in BODIES:
                    bodies = BODIES[case.operation.label]
                    case.body = bodies[_digest(case.body) % len(bodies)]

            def get_call_kwargs(self, _case: AnyCase) -> dict[str, Any]:
                return {
                    "session": service.session,
                    "headers": service.headers(Scope.ADMIN),
                    "timeout": PATIENCE_S,
                }

        Chain.run(settings=bounds(BOUNDS, max_examples=CHAINS, stateful_step_count=STEPS))
