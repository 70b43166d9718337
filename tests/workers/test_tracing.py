"""A trace leads from the request to the last commit, across processes.

Where nobody collects traces there is none.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.app import create_app
from fedcore.errors import SettingsError
from fedcore.platform import tracing
from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.access import key_for
from tests.support.asgi import calling
from tests.workers.deployment import Deployment
from tests.workers.throttled_worker import SHORT_SLICES

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Everything that is traced from now on."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """One without OTEL_*, in which the provider that is set is forgotten afterwards."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
    yield monkeypatch
    getattr(trace.get_tracer_provider(), "shutdown", lambda: None)()


def _submit(deployment: Deployment, **headers: str) -> str:
    url = deployment.environment["FEDQ_DATABASE_URL"]
    settings = Settings(
        _env_file=None, home=deployment.folder, database_url=url, broker_url=deployment.broker_url
    )
    with calling(create_app(settings), key_for(url)) as http:
        http.headers.update(headers)
        assert http.get("/healthz").is_success
        return str(submit_over_http(http, {**TINY, "seeds": [0, 1]})["id"])


def _named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_trace_leads_from_the_request_of_a_caller_to_every_commit(
    deployment: Deployment, collected: InMemorySpanExporter
) -> None:
    experiment = _submit(deployment, traceparent=f"00-{TRACE}-{PARENT}-01")
    with deployment.with_settings(slice_seconds=10).runner(
        pacing=replace(SHORT_SLICES, batch_runs=1)
    ) as runner:
        runner.work()
    spans = collected.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    (request,) = _named(spans, "POST /v1/experiments")
    (submission,) = _named(spans, "submit")
    assert _parent(request) == int(PARENT, 16)
    assert _parent(submission) == _id(request)
    turns = _named(spans, "turn")
    assert [dict(turn.attributes or {}) for turn in turns] == [
        {"fedq.run_id": run.id, "fedq.experiment_id": experiment, "fedq.fence": 1}
        for run in deployment.runs(experiment)
    ]
    for turn in turns:
        assert _parent(turn) == _id(submission)
        assert [span.name for span in spans if _parent(span) == _id(turn)] == [
            "claim",
            "slice",
            "commit",
            "slice",
            "commit",
        ]
    assert not any("healthz" in span.name for span in spans)


def test_where_nobody_collects_traces_runs_belong_to_none(embedded: Deployment) -> None:
    experiment = _submit(embedded)
    with embedded.runner() as runner:
        runner.work()
    assert all(run.done == run.rounds for run in embedded.runs(experiment))
    assert tracing.get_traceparent() is None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_a_place_for_them_nothing_is_set_up(
    environment: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    for name, value in values.items():
        environment.setenv(name, value)
    tracing.configure("worker")
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)


def test_the_environment_says_where_spans_go_and_as_whose(environment: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    environment.setattr("opentelemetry.sdk.trace.export.ConsoleSpanExporter", lambda: exporter)
    environment.setenv("OTEL_TRACES_EXPORTER", "console")
    tracing.configure("worker", **{"service.instance.id": "here-7"})
    with tracing.span("slice", after=3):
        pass
    tracing.flush()
    (told,) = exporter.get_finished_spans()
    assert (told.name, dict(told.attributes or {})) == ("slice", {"fedq.after": 3})
    assert {"service.name": "fedq-worker", "service.instance.id": "here-7"}.items() <= dict(
        told.resource.attributes
    ).items()


def test_an_exporter_that_there_is_not_is_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_TRACES_EXPORTER", "jaeger")
    with pytest.raises(SettingsError, match="must be one of otlp, console or none, not 'jaeger'"):
        tracing.configure("worker")


def test_without_the_packages_it_says_which_to_install(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    environment.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    tracing.configure("worker")
    assert "pip install fedq[otel]" in caplog.text
