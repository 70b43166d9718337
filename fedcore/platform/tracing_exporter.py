"""Where spans go; needs the packages of `fedq[otel]`."""

import os
from collections.abc import Callable, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from fedcore.errors import SettingsError

EXPORTERS: dict[str, Callable[[], SpanExporter]] = {"otlp": OTLPSpanExporter, "console": ConsoleSpanExporter}


def provider(process: str, facts: Mapping[str, str]) -> TracerProvider:
    """Makes tracers as OTEL_* says, for a process of this name.

    Raises SettingsError for an exporter that there is not.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name not in EXPORTERS:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER: must be one of {', '.join(EXPORTERS)} or none, not {name!r}"
        )
    given = {"service.name": os.environ.get("OTEL_SERVICE_NAME", f"fedq-{process}"), **facts}
    made = TracerProvider(resource=Resource.create(given))
    made.add_span_processor(BatchSpanProcessor(EXPORTERS[name]()))
    return made
