"""The log: every line of one form, with the ids of what it is about and without secrets."""

import io
import json
import logging
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator

import pytest
import structlog
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from structlog.contextvars import bound_contextvars

from fedcore.platform.logging import (
    EVENT_CHARACTERS,
    FIELDS_CHARACTERS,
    LoggedEvent,
    RunLogHandler,
    configure,
)
from fedcore.platform.status import LogLevel
from fedcore.settings import Settings
from fedcore.visible_text import visible
from tests.builders.specifications import Document

SECRET = "hunter2"
WITH_SECRETS = (
    f"postgresql://fedq:{SECRET}@db/fedq is away",
    f"redis://:{SECRET}@broker:6379/0",
    f"http://u:p@{SECRET}@host/",
    f"Authorization: Bearer {SECRET}",
    f"authorization: bearer fq_0a1b_{SECRET}",
    f"key fq_0a1b_{SECRET} was refused",
    f"signed by whsec_{SECRET}+/{SECRET}==",
    f"connection failed: password={SECRET} host=db",
    f'{{"secret": "{SECRET}", "token":"{SECRET}"}}',
)


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever logs after these tests finds what was there before."""
    monkeypatch.setattr(logging.getLogger(), "level", logging.getLogger().level)


def _configure(**facts: str) -> None:
    configure(Settings(_env_file=None), "worker", **facts)


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def written(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """Configures logging to a file or to a terminal, and returns what has been written there, without
    its colours.
    """
    monkeypatch.setattr(sys.stderr, "isatty", lambda: request.param)
    _configure()
    return lambda: re.sub(r"\x1b\[\d+m", "", capsys.readouterr().err)


def test_a_disk_that_is_full_costs_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        _configure()
        for _ in range(2):
            logging.getLogger("test").error("nobody will read this")
        try:
            int("nor this")
        except ValueError:
            structlog.stdlib.get_logger("test").exception("it went wrong")


def _lines(capsys: pytest.CaptureFixture[str]) -> list[Document]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_lines_name_the_trace_and_the_span_in_which_they_are_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure()
    here = SpanContext(trace_id=0xABC << 100, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    logging.getLogger("some.library").warning("before")
    with use_span(NonRecordingSpan(here)):
        logging.getLogger("some.library").warning("within")
        structlog.stdlib.get_logger("fedq").warning("within")
    before, *within = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {"trace_id", "span_id"}.isdisjoint(before)
    # As W3C Trace Context writes them: 32 and 16 hexadecimal digits.
    assert {(line["trace_id"], line["span_id"]) for line in within} == {
        (f"{0xABC:07x}" + 25 * "0", "0000000000000def")
    }


def test_lines_of_libraries_and_of_our_own_carry_the_same_context(capsys: pytest.CaptureFixture[str]) -> None:
    _configure(worker_id="here-7")
    with bound_contextvars(run_id="run_1", fence=3):
        logging.getLogger("sqlalchemy.pool").warning("connection %d is stale", 4)
        structlog.stdlib.get_logger("fedq.api").warning("slow after %d s", 2, query="claim")
    library, own = _lines(capsys)
    context = {"process": "worker", "worker_id": "here-7", "run_id": "run_1", "fence": 3, "level": "warning"}
    assert context.items() <= library.items()
    assert context.items() <= own.items()
    assert (library["event"], library["logger"]) == ("connection 4 is stale", "sqlalchemy.pool")
    assert (own["event"], own["logger"], own["query"]) == ("slow after 2 s", "fedq.api", "claim")
    assert library["time"] <= own["time"]


def test_nothing_is_written_that_a_terminal_obeys(written: Callable[[], str]) -> None:
    """Users write addresses of requests and errors of bundles, which the terminal of `fedq up` shows."""
    hostile = "\x1b]52;c;aGk=\x07\x9b2J\u202e"
    logging.getLogger("celery").error("in an error", exc_info=ValueError(hostile))
    logging.getLogger("celery").warning("in an argument: %s", hostile)
    structlog.stdlib.get_logger().warning("in a field", field=hostile, fields=[hostile])
    text = written()
    assert text.count("]52;c;") == 4
    assert visible(text) == text


@pytest.mark.parametrize("message", WITH_SECRETS)
def test_no_secret_is_written(written: Callable[[], str], message: str) -> None:
    logging.getLogger("celery").error("in an error", exc_info=ValueError(message))
    logging.getLogger("celery").warning("in an argument: %s", message)
    structlog.stdlib.get_logger().warning("in a field", field=message)
    text = written()
    assert text.count("in a") == 3
    assert "***" in text
    assert SECRET not in text


def test_text_that_is_no_secret_stays(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    for message in ("http://127.0.0.1:8642/v1 answers", "redis://broker:6379/0", "key fq_0a1b was refused"):
        logging.getLogger("any").warning(message)
        assert _lines(capsys)[0]["event"] == message


def test_an_error_brings_its_traceback_in_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    try:
        json.loads("gone")
    except ValueError:
        structlog.stdlib.get_logger().exception("failed")
    (line,) = _lines(capsys)
    assert "Traceback" in line["exception"]
    assert "JSONDecodeError: Expecting value" in line["exception"]


def test_a_terminal_gets_text_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    _configure()
    logging.getLogger("celery").warning("ready")
    assert "ready" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_below_the_level_nothing_is_written_and_what_happens_every_second_is_no_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure()
    for name in ("uvicorn.access", "celery.worker.strategy", "httpx"):
        logging.getLogger(name).info("again")
    structlog.stdlib.get_logger().debug("detail")
    assert _lines(capsys) == []


def test_configuring_again_does_not_write_twice(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    _configure()
    logging.getLogger("any").warning("once")
    assert len(_lines(capsys)) == 1


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[deque[LoggedEvent]]:
    """Lines about the run `run_1`."""
    handler, queue = RunLogHandler(), deque[LoggedEvent]()
    handler.collect("run_1", queue)
    logging.getLogger().addHandler(handler)
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    yield queue
    logging.getLogger().removeHandler(handler)


def test_lines_about_a_run_are_collected_and_no_others(collected: deque[LoggedEvent]) -> None:
    _configure(worker_id="here-7")
    logging.getLogger("any").warning("about nothing")
    with bound_contextvars(run_id="run_2"):
        logging.getLogger("any").warning("about another")
    with bound_contextvars(run_id="run_1", experiment_id="exp_1", fence=3):
        logging.getLogger("sqlalchemy.pool").warning("connection %d is stale", 4)
        structlog.stdlib.get_logger("fedq").info("slow", seconds=2.5, query=["a", 1], nothing=None)
        logging.getLogger("any").debug("below the level")
    library, own = collected
    assert (library.level, library.event) == (LogLevel.WARNING, "connection 4 is stale")
    assert library.fields == {"fence": 3, "logger": "sqlalchemy.pool"}
    assert (own.level, own.event) == (LogLevel.INFO, "slow")
    assert own.fields == {
        "seconds": 2.5,
        "query": '["a", 1]',
        "nothing": None,
        "fence": 3,
        "logger": "fedq",
    }
    assert library.time.tzinfo is not None
    assert library.time <= own.time


@pytest.mark.parametrize("message", WITH_SECRETS)
def test_no_secret_is_collected(collected: deque[LoggedEvent], message: str) -> None:
    _configure()
    with bound_contextvars(run_id="run_1"):
        logging.getLogger("celery").error("in an error", exc_info=ValueError(message))
        logging.getLogger("celery").warning("in an argument: %s", message)
        structlog.stdlib.get_logger().warning("in a field", field=message)
    assert len(collected) == 3
    assert "***" in str(collected)
    assert SECRET not in str(collected)


def test_a_collected_line_is_short_and_can_be_stored(collected: deque[LoggedEvent]) -> None:
    _configure()
    handler = RunLogHandler()
    handler.collect("run_1", collected)
    error = ValueError("x" * 50_000 + " the end")
    message, dots = "NUL \0, half a pair \ud800, %s", ("." * 10_000,)
    with bound_contextvars(run_id="run_1"):
        # Straight to a handler: reports of pytest, which have all that is logged, cannot hold half a pair.
        raised = (ValueError, error, None)
        handler.handle(logging.LogRecord("any", logging.ERROR, "", 0, message, dots, raised))
        fields = {f"field_{index}": "y" * 1_000 for index in range(100)}
        structlog.stdlib.get_logger().warning("many", size=math.inf, **fields)
    long, many = collected
    assert long.event.startswith("NUL ?, half a pair ?, ...")
    assert len(long.event) == EVENT_CHARACTERS
    assert long.fields["exception"].endswith(" the end")
    assert many.fields["size"] == "Infinity"
    for line in collected:
        assert sum(len(name) + len(str(value)) for name, value in line.fields.items()) <= FIELDS_CHARACTERS
    # As databases have it, which know no NaN.
    assert json.loads(json.dumps(many.fields, allow_nan=False)) == many.fields


def test_a_level_of_a_library_is_information(collected: deque[LoggedEvent]) -> None:
    _configure()
    with bound_contextvars(run_id="run_1"):
        logging.getLogger("any").log(35, "between warning and error")
    assert [line.level for line in collected] == [LogLevel.INFO]
