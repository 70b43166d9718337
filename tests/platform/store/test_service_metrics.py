"""Rates at which runs went, on both databases."""

from typing import Any

import pytest

from fedcore.platform.store import Database, experiments, service_metrics
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.service_metrics import MOST_RUNS
from tests.documents import specification
from tests.platform.store.acts import ONE_RUN, claim, read, record, report, write

KIND = "logistic, engine auto"


def _submit(
    database: Database, kind: str = KIND, work: float = 60.0, owner: str = "ada", **changes: Any
) -> None:
    new = NewExperiment(specification(ONE_RUN, **changes), owner=owner, work=[(kind, work)])
    write(database, experiments.create, new)


def _rates(database: Database, kind: str = KIND, owner: str | None = None) -> list[float]:
    return read(database, service_metrics.recent_rates, kind, owner)


def test_rates_are_the_work_of_committed_rounds_by_their_seconds_latest_first(database: Database) -> None:
    _submit(database, seeds=[0, 1])
    assert _rates(database) == []
    for seconds in (2.0, 6.0):
        held = claim(database)
        record(database, held, [report(round, seconds=seconds) for round in (1, 2)])
    assert _rates(database) == pytest.approx([10.0, 30.0])


def test_only_runs_of_the_kind_and_of_the_owner_count(database: Database) -> None:
    _submit(database)
    record(database, claim(database), [report(1, seconds=2.0)])
    assert _rates(database, owner="ada") == [30.0]
    assert _rates(database, owner="bob") == []
    assert _rates(database, "mlp, engine auto") == []


def test_runs_whose_work_is_unknown_or_that_took_no_time_do_not_count(database: Database) -> None:
    _submit(database, work=0.0)
    record(database, claim(database), [report(1)])
    _submit(database)
    record(database, claim(database), [report(1, seconds=0.0)])
    assert _rates(database) == []


def test_the_latest_runs_count(database: Database) -> None:
    _submit(database, seeds=list(range(MOST_RUNS + 1)))
    for number in range(MOST_RUNS + 1):
        record(database, claim(database, f"worker-{number}"), [report(1, seconds=60.0 / (number + 1))])
    assert sorted(_rates(database)) == pytest.approx(range(2, MOST_RUNS + 2))
