"""Creation of experiments: idempotency keys, quotas and outcomes from elsewhere."""

import pytest

from fedcore.errors import IdempotencyError, QuotaError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, experiments, keys
from fedcore.platform.store.experiments import NewExperiment
from tests.documents import specification
from tests.platform.store.acts import ONE_RUN, read, the_runs, write


def new(name: str, **given: object) -> NewExperiment:
    return NewExperiment(specification(ONE_RUN, name=name), **given)  # type: ignore[arg-type]


def names(database: Database) -> list[str]:
    return sorted(record.name for record in read(database, experiments.page).items)


def test_a_repeated_request_returns_the_first_experiment(database: Database) -> None:
    first = write(database, experiments.create, new("a", idempotency_key="k"))
    again = write(database, experiments.create, new("a", idempotency_key="k"))
    assert (first.is_new, again.is_new) == (True, False)
    assert first.record.id == again.record.id
    assert names(database) == ["a"]


def test_another_request_under_a_used_key_is_refused_but_owners_share_no_keys(database: Database) -> None:
    write(database, experiments.create, new("a", idempotency_key="k"))
    with pytest.raises(IdempotencyError):
        write(database, experiments.create, new("b", idempotency_key="k"))
    write(database, experiments.create, new("c", owner="ann", idempotency_key="k"))
    assert names(database) == ["a", "c"]


def test_a_refusal_by_a_quota_leaves_the_idempotency_key_free(database: Database) -> None:
    key_id = write(database, keys.create, owner="ann", scope=Scope.SUBMIT, max_waiting_runs=1)[0].id
    write(database, experiments.create, new("first", owner="ann", key_id=key_id))
    with pytest.raises(QuotaError, match="2 queued or paused runs, limit 1"):
        write(database, experiments.create, new("second", owner="ann", key_id=key_id, idempotency_key="k"))
    write(database, experiments.create, new("other", owner="ann", idempotency_key="k"))
    assert names(database) == ["first", "other"]


def test_runs_begin_with_the_provenance_they_are_given(database: Database) -> None:
    spec = specification(ONE_RUN, seeds=[0, 1])
    given = {(0, 1): {"engine_choice": {"engine": "parallel"}}}
    made = write(database, experiments.create, NewExperiment(spec, run_provenance=given)).record
    assert [run.provenance for run in the_runs(database, made)] == [{}, given[0, 1]]
