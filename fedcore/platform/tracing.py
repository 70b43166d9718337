"""Traces (OpenTelemetry): one per request, from the submission to the commit of the last slice.

Off unless the standard environment variables name a destination (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_TRACES_EXPORTER`); sending spans takes `pip install fedq[otel]`. The trace that the spans of a
run belong to is stored with its experiment: a message carries nothing.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fedcore.errors import SettingsError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)


def configure(process: str, **attributes: str) -> None:
    """Send this process's spans where the environment says, if it does.

    Call it after a fork, not before.
    """
    if not _wanted():
        return
    try:
        provider = _provider(process, attributes)
    except ImportError as error:
        log.warning(
            "OTEL_* says where traces go, but nothing here can send them (%s): pip install fedq[otel]", error
        )
        return
    trace.set_tracer_provider(provider)


def flush() -> None:
    """Send pending spans before the process ends without cleanup."""
    getattr(trace.get_tracer_provider(), "force_flush", lambda: None)()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span]:
    """A span around the block, part of the one around it; nothing where traces are off."""
    return _tracer().start_as_current_span(
        name, attributes={f"fedq.{key}": value for key, value in attributes.items()}
    )


@contextmanager
def continue_trace(
    traceparent: str | None, name: str, *, began_ns: int, **attributes: str | int
) -> Iterator[None]:
    """A span around the block, part of the trace that was noted as `traceparent`.

    A part of it is the claim, begun at `began_ns`.
    """
    parent = _W3C.extract({_PARENT: traceparent} if traceparent else {}, Context())
    named = {f"fedq.{key}": value for key, value in attributes.items()}
    with _tracer().start_as_current_span(name, parent, attributes=named, start_time=began_ns):
        _tracer().start_span("claim", start_time=began_ns).end()
        yield


def get_traceparent() -> str | None:
    """The current trace context, for spans elsewhere to continue (W3C Trace Context).

    None where there is none.
    """
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier.get(_PARENT)


def ids() -> dict[str, str]:
    """The present trace and span, by the names that log lines have for them.

    Empty where there is none.
    """
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }


def _tracer() -> trace.Tracer:
    # Looked up each time: a tracer from before the configuration does nothing.
    return trace.get_tracer("fedq")


def _wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "")
    return exporter != "none" and bool(exporter or any(os.environ.get(name) for name in _ENDPOINTS))


def _provider(process: str, attributes: Mapping[str, str]) -> "TracerProvider":
    """Create the provider that OTEL_* describes; raises SettingsError for an unknown exporter."""
    # Imported here: these packages belong to `fedq[otel]`, and take 0.2 s to load.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporters = {"otlp": OTLPSpanExporter, "console": ConsoleSpanExporter}
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name not in exporters:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER: must be one of {', '.join(exporters)} or none, not {name!r}"
        )
    resource = {"service.name": os.environ.get("OTEL_SERVICE_NAME", f"fedq-{process}"), **attributes}
    provider = TracerProvider(resource=Resource.create(resource))
    provider.add_span_processor(BatchSpanProcessor(exporters[name]()))
    return provider
