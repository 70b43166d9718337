"""The log of a process: a line an event, as JSON or for people, with the ids of what it is about
and without secrets.

Libraries log through the standard library and FedQ's own modules through either; all lines take one
form. What is bound by `structlog.contextvars` (a request, a run with its claim) is part of every
line that is written meanwhile, a library's too.

What neither logs nor errors that are kept may tell: passwords in URLs, keys, tokens.
"""

import json
import logging
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import StringIO
from math import isfinite
from typing import Any, NamedTuple, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from fedcore.platform import tracing
from fedcore.platform.status import LogLevel
from fedcore.settings import Settings
from fedcore.visible_text import visible

_SECRETS = (
    (("://",), re.compile(r"(://[^\s:/@\"']*):[^\s\"']+@"), r"\1:***@"),  # a URL's password
    (("bearer",), re.compile(r"\b(bearer\s+)[^\s\\\"',]+", re.IGNORECASE), r"\1***"),
    (
        ("fq_",),
        re.compile(r"\b(fq_[A-Za-z0-9]+)_[\w-]+"),
        r"\1_***",
    ),  # an API key, but for the part by which it is known
    (("whsec_",), re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"), "whsec_***"),  # what signs for a webhook
    (
        ("password", "secret", "token", "api_key"),
        re.compile(
            r"\b((?:password|secret|token|api_key)\\*[\"']?\s*[=:]\s*\\*[\"']?)[^\s\\\"',}&]+", re.IGNORECASE
        ),
        r"\1***",
    ),
)


def redact_secrets(text: str) -> str:
    """`text` with `***` in the place of secrets."""
    plain = text.lower()
    for hints, secret, mask in _SECRETS:
        # To look for a word is ten times as fast as to look for a pattern.
        if any(hint in plain for hint in hints):
            text = secret.sub(mask, text)
    return text


QUIET = (
    *("aiobotocore", "alembic", "botocore", "celery.app.trace", "celery.worker.strategy", "httpx"),
    "uvicorn.access",
)
"""Loggers of routine events: wake-ups, our own requests, and requests that `api.http.middleware`
logs.
"""


def configure(settings: Settings, process: str, **facts: str) -> None:
    """Make this process log to its standard error, as text on a terminal and as JSON elsewhere, each
    line with the name of the process and `facts`; may be called again.
    """
    shared = _shared()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    known: Processor = lambda _logger, _method, event: {"process": process, **facts, **event}  # noqa: E731 - one expression
    rendering = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        known,
        *_renderers(),
        _without_secrets,
    ]
    handler = _Handler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=rendering))
    _install(handler, settings.log_level.upper())


def _shared() -> list[Processor]:
    """Processors of every event, whichever way it was logged."""
    return [
        structlog.contextvars.merge_contextvars,
        _with_trace,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _install(handler: _Handler, level: str) -> None:
    root = logging.getLogger()
    for previous in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(previous)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Uvicorn has given its loggers handlers of their own.
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def _renderers() -> list[Processor]:
    if not sys.stderr.isatty():
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    render = structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=_write_traceback)
    return [_show_controls, render]


def _show_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Users write parts of events: addresses of requests, errors of bundles."""
    return {name: visible(value) if isinstance(value, str) else value for name, value in event.items()}


def _write_traceback(to: TextIO, error: ExcInfo) -> None:
    """The renderer's own choice of traceback shows the values of variables."""
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    to.write(visible(text.getvalue()))


def _with_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids of trace and span, by which a line is found from its trace, and the trace from a
    line.
    """
    return {**event, **tracing.ids()}


def _without_secrets(_logger: WrappedLogger, _method: str, line: Any) -> Any:
    return redact_secrets(line)


EVENT_CHARACTERS, FIELDS_CHARACTERS = 2_000, 8_000
"""Longest event of a line that is kept with a run, and longest text of all of its fields."""
_KNOWN = frozenset({"time", "level", "event", "process", "run_id", "experiment_id", "worker_id"})
"""Parts of a line that its run has besides, or that are columns."""


class LoggedEvent(NamedTuple):
    """A log line about a run, as it is kept with the run."""

    time: datetime
    level: LogLevel
    event: str
    fields: dict[str, Any]


class RunLogHandler(logging.Handler):
    """Collects lines about certain runs, in the form of the log and without secrets, in queues.

    A line is about the run that `structlog.contextvars` names where it is written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, deque[LoggedEvent]] = {}
        rendering: list[Processor] = [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
            _without_secrets,
        ]
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_shared(), processors=rendering)
        )

    def collect(self, run_id: str, queue: deque[LoggedEvent]) -> None:
        """Append lines about a run to `queue` from now on."""
        self._queues[run_id] = queue

    def ignore(self, run_id: str) -> None:
        """Collect lines about a run no more."""
        self._queues.pop(run_id, None)

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a line, if it is about one of the runs."""
        queue = self._queues.get(structlog.contextvars.get_contextvars().get("run_id", ""))
        if queue is None:
            return
        try:
            queue.append(_logged_event(json.loads(self.format(record))))
        except Exception:
            self.handleError(record)


def _logged_event(line: Mapping[str, Any]) -> LoggedEvent:
    # Libraries may define levels of their own.
    level = next((known for known in LogLevel if known == line["level"]), LogLevel.INFO)
    event = storable_text(str(line["event"]))[:EVENT_CHARACTERS]
    return LoggedEvent(datetime.fromisoformat(line["time"]), level, event, dict(_fields(line)))


def _fields(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a line, as far as their texts fit; of a long text its end, where a traceback names
    the error.
    """
    left = FIELDS_CHARACTERS
    for name, value in line.items():
        if name in _KNOWN:
            continue
        is_short = value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value))
        kept = value if is_short else _text(value)[-left // 2 :]
        left -= len(name) + len(str(kept))
        if left < 0:
            return
        yield storable_text(name), kept


def _text(value: Any) -> str:
    return storable_text(value if isinstance(value, str) else json.dumps(value))


def storable_text(text: str) -> str:
    """Return `text` without what databases cannot store or JSON cannot carry."""
    return text.encode(errors="replace").decode().replace("\0", "?")
