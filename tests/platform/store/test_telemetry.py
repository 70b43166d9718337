"""Log lines and resource use of runs: fenced, bounded, and of no consequence for the run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text

from fedcore.errors import StaleLeaseError
from fedcore.platform.logging import LoggedEvent
from fedcore.platform.status import LogLevel
from fedcore.platform.store import Database, Session, Status, experiments, runs, telemetry
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ResourceRecord, RunLogRecord
from fedcore.platform.store.telemetry import MAX_LINES, MAX_SAMPLES, ResourceUse
from tests.builders.claims import ATTEMPTS, LEASE_S, claim, finish, lose
from tests.builders.experiments import run_of, submit
from tests.builders.transactions import on_sqlite, read, write

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


def line(number: int, level: LogLevel = LogLevel.INFO) -> LoggedEvent:
    return LoggedEvent(START + timedelta(seconds=number), level, f"event {number}", {"number": number})


def sample(number: int, **values: Any) -> ResourceUse:
    use = ResourceUse(START + timedelta(seconds=number), 1.0, cpu_cores=1.0, memory_bytes=100)
    return use._replace(**values)


def note(
    database: Database,
    held: Claim,
    lines: Sequence[LoggedEvent] = (),
    samples: Sequence[ResourceUse] = (),
) -> None:
    """Renew the lease and store these, as a heartbeat does."""
    with database.transaction() as session:
        runs.renew(session, held, LEASE_S)
        telemetry.append(session, held.lease, lines, samples)


def events(database: Database, held: Claim, *about: Any) -> list[str]:
    return [found.event for found in read(database, telemetry.log_lines, held.run_id, *about)]


def test_lines_are_read_in_order_after_a_number_and_from_a_level_on(database: Database) -> None:
    submit(database)
    held = claim(database)
    levels = (LogLevel.DEBUG, LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR, LogLevel.CRITICAL)
    note(database, held, [line(number, level) for number, level in enumerate(levels, 1)])
    note(database, held, [line(6)])
    found = read(database, telemetry.log_lines, held.run_id)
    assert [(one.number, one.event) for one in found] == [(n, f"event {n}") for n in range(1, 7)]
    assert (found[0].time, found[0].worker, found[0].fields) == (line(1).time, held.worker, {"number": 1})
    assert events(database, held, 4, 1) == ["event 5"]
    assert events(database, held, 0, 10, LogLevel.WARNING) == ["event 3", "event 4", "event 5"]


def test_samples_are_read_in_order_after_a_number(database: Database) -> None:
    submit(database)
    held = claim(database)
    full = sample(1, cpu_cores=1.5, gpu_utilisation=0.5, gpu_memory_bytes=2**40)
    note(database, held, samples=[full, sample(2)])
    note(database, held, samples=[sample(3)])
    first, *others = read(database, telemetry.resource_samples, held.run_id)
    assert (first.time, first.seconds, first.worker) == (full.time, 1.0, held.worker)
    assert (first.cpu_cores, first.memory_bytes) == (1.5, 100)
    assert (first.gpu_utilisation, first.gpu_memory_bytes) == (0.5, 2**40)
    assert [one.number for one in others] == [2, 3]
    assert [one.number for one in read(database, telemetry.resource_samples, held.run_id, 1, 1)] == [2]


def test_earlier_holder_of_the_run_is_refused(database: Database) -> None:
    submit(database)
    lost = claim(database)
    write(database, runs.release, lost)
    held = claim(database, "worker-2")
    with pytest.raises(StaleLeaseError):
        write(database, telemetry.append, lost.lease, [line(1)], [sample(1)])
    note(database, held, [line(2)])
    assert events(database, held) == ["event 2"]
    assert read(database, telemetry.resource_samples, held.run_id) == []


def test_lines_are_stored_with_the_end_of_a_claim_or_not_at_all(database: Database) -> None:
    submit(database)
    held = claim(database)

    def fail(session: Session, number: int) -> None:
        telemetry.append(session, held.lease, [line(number)], [])
        runs.fail(session, held, "ValueError: no", ATTEMPTS)

    write(database, fail, 1)
    with pytest.raises(StaleLeaseError):
        write(database, fail, 2)
    assert events(database, held) == ["event 1"]


def test_the_newest_lines_of_a_run_are_kept(database: Database) -> None:
    submit(database, seeds=[0, 1])
    held, other = claim(database), claim(database, "worker-2")
    note(database, other, [line(0)])
    for first in range(1, 2 * MAX_LINES, MAX_LINES // 2):
        note(database, held, [line(number) for number in range(first, first + MAX_LINES // 2)])
    kept = read(database, telemetry.log_lines, held.run_id, 0, 2 * MAX_LINES)
    assert [one.number for one in kept] == list(range(MAX_LINES + 1, 2 * MAX_LINES + 1))
    assert events(database, other) == ["event 0"]


def test_of_more_lines_at_once_than_are_kept_of_a_run_the_newest_are_kept(database: Database) -> None:
    submit(database)
    held = claim(database)
    note(database, held, [line(number) for number in range(MAX_LINES + 2)])
    kept = events(database, held)
    assert (len(kept), kept[0], kept[-1]) == (MAX_LINES, "event 2", f"event {MAX_LINES + 1}")


def test_samples_of_a_long_run_cover_all_of_its_time_evenly_and_lose_no_use(database: Database) -> None:
    submit(database)
    held, count, at_once = claim(database), 10 * MAX_SAMPLES, 50
    for first in range(0, count, at_once):
        # The load rises steadily, and one sample takes the most memory.
        numbers = range(first, first + at_once)
        note(
            database,
            held,
            samples=[
                sample(n, cpu_cores=n / count, memory_bytes=7_777 if n == 123 else 100) for n in numbers
            ],
        )
    found = read(database, telemetry.resource_samples, held.run_id)
    assert MAX_SAMPLES // 5 <= len(found) <= MAX_SAMPLES
    assert sum(one.seconds for one in found) == pytest.approx(count)
    core_seconds = sum(one.cpu_cores * one.seconds for one in found)
    assert core_seconds == pytest.approx(sum(n / count for n in range(count)))
    assert max(one.memory_bytes for one in found) == 7_777
    assert max(one.seconds for one in found) < 6 * count / MAX_SAMPLES
    assert [one.number for one in found] == sorted(one.number for one in found)
    assert [one.time for one in found] == sorted(one.time for one in found)
    assert (found[-1].time, found[-1].number) == (sample(count - 1).time, count)


def test_merged_samples_keep_what_is_known_of_a_gpu(database: Database) -> None:
    submit(database)
    held = claim(database)
    halves = [
        sample(0, gpu_utilisation=1.0, gpu_memory_bytes=5),
        *(sample(n, gpu_utilisation=0.5, gpu_memory_bytes=4) for n in range(1, MAX_SAMPLES)),
        sample(MAX_SAMPLES),
    ]
    note(database, held, samples=halves)
    first, *_, last = read(database, telemetry.resource_samples, held.run_id)
    assert (first.seconds, first.gpu_memory_bytes) == (3.0, 5)
    assert first.gpu_utilisation == pytest.approx(2 / 3)
    assert (last.seconds, last.gpu_utilisation, last.gpu_memory_bytes) == (1.0, None, None)


@pytest.mark.parametrize("table", ["run_log", "run_resources"])
def test_a_store_that_takes_no_lines_costs_the_lines_and_not_the_lease(
    database: Database, table: str
) -> None:
    experiment = submit(database)
    held = claim(database)
    write(database, lambda session: session.execute(text(f"ALTER TABLE {table} RENAME TO elsewhere")))
    before = run_of(database, experiment).lease_until
    note(database, held, [line(1)], [sample(1)])
    after = run_of(database, experiment).lease_until
    assert before is not None
    assert after is not None
    assert after > before
    with database.transaction() as session:
        runs.release(session, held)
        telemetry.append(session, held.lease, [line(2)], [sample(2)])
    assert run_of(database, experiment).status is Status.QUEUED


def test_a_line_that_cannot_be_stored_harms_nothing(database: Database) -> None:
    experiment = submit(database)
    held = claim(database)
    note(database, held, [LoggedEvent(datetime(2026, 11, 23), LogLevel.INFO, "no time zone", {})])  # noqa: DTZ001
    note(database, held, [line(1)])
    assert events(database, held) == ["event 1"]
    assert run_of(database, experiment).status is Status.RUNNING


def test_a_lost_worker_leaves_a_line_that_says_so(database: Database) -> None:
    submit(database)
    held = claim(database, lease_s=-1.0)
    assert lose(database) == [held.run_id]
    (found,) = read(database, telemetry.log_lines, held.run_id)
    assert (found.level, found.worker, found.fields) == (LogLevel.WARNING, held.worker, {"fence": 1})
    expected = f"worker {held.worker} was lost after round 0: its lease has expired; the run is queued"
    assert found.event == expected


@on_sqlite
def test_telemetry_goes_with_its_experiment(database: Database) -> None:
    experiment = submit(database)
    held = claim(database)
    note(database, held, [line(1)], [sample(1)])
    finish(database, held)
    assert events(database, held) == ["event 1"]
    write(database, experiments.delete, experiment.id)
    with database.reading() as session:
        for table in (RunLogRecord, ResourceRecord):
            assert session.scalar(select(func.count()).select_from(table)) == 0
