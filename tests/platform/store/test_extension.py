"""More rounds and seeds for an experiment: what goes on, what stays, what is refused, on both
databases.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from fedcore.errors import (
    QuotaError,
    ResourceNotFoundError,
    SpecificationError,
    StaleLeaseError,
    StateConflictError,
)
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, Status, experiments, extension, keys, lifecycle, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.simulation.report import StopReason
from tests.builders.claims import LEASE_S, claim, claimant, commit, finish
from tests.builders.experiments import runs_of, submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import read, write

TEN: dict[str, Any] = {"rounds": 10, "seeds": [3, 1]}


def extend(
    database: Database,
    made: ExperimentRecord,
    rounds: int | None = None,
    seeds: Sequence[int] = (),
    **given: Any,
) -> ExperimentRecord:
    needed = {"measure": lambda spec: [7] * spec.arm_count, **given}
    return write(database, extension.extend, made.id, rounds=rounds, seeds=seeds, **needed)


def standing(database: Database, made: ExperimentRecord) -> list[tuple[int, str, int, int]]:
    return [(run.seed, str(run.status), run.done, run.rounds) for run in runs_of(database, made)]


def test_finished_runs_go_on_from_their_checkpoints(database: Database) -> None:
    made = submit(database, **TEN)
    finish(database, claim(database))
    finish(database, claim(database))
    longer = extend(database, made, 25)
    assert standing(database, made) == [(3, "queued", 10, 25), (1, "queued", 10, 25)]
    assert (longer.status, longer.finished_at, longer.spec["rounds"]) == (Status.RUNNING, None, 25)
    held = claim(database)
    assert (held.done, held.until, held.spec["rounds"]) == (10, 25, 25)
    assert held.checkpoint is not None


def test_new_seeds_become_runs_of_every_arm_behind_the_others(database: Database) -> None:
    spec = specification(ONE_RUN, **TEN, sweep={"local.lr": [0.1, 0.2]}, execution={"priority": 2})
    new = NewExperiment(spec, work=[("a kind", 1.0), ("a kind", 2.0)])
    made = write(database, experiments.create, new).record
    write(database, experiments.edit, made.id, priority=8)
    finish(database, claim(database))
    extend(database, made, seeds=[1, 9])
    found = runs_of(database, made)
    assert [(run.arm, run.seed) for run in found] == [(0, 3), (0, 1), (1, 3), (1, 1), (0, 9), (1, 9)]
    assert [str(run.status) for run in found] == ["succeeded", *["queued"] * 5]
    assert {run.priority for run in found} == {8}
    assert {run.memory_bytes for run in found} == {7}
    assert [(run.work, run.work_kind) for run in found] == [(float(1 + run.arm), "a kind") for run in found]
    assert read(database, experiments.find, made.id).spec["seeds"] == [3, 1, 9]


def test_extension_is_safe_to_repeat_and_leaves_a_history(database: Database) -> None:
    made = submit(database, **TEN)
    for _ in range(2):
        extend(database, made, 20, [5], made_with={"fedq": "1.2.3"})
    extended = extend(database, made, 30)
    first, second = extended.provenance["extensions"]
    assert (first["rounds_before"], first["rounds"], first["seeds_added"], first["fedq"]) == (
        10,
        20,
        [5],
        "1.2.3",
    )
    assert (second["rounds_before"], second["rounds"], second["seeds_added"]) == (20, 30, [])
    assert len(runs_of(database, made)) == 3


def test_runs_that_diverged_or_stopped_early_stay_as_they_are(database: Database) -> None:
    made = submit(database, **TEN)
    end: dict[str, Any] = {"model": "model", "provenance": {}}
    write(database, runs.finish, commit(database, claim(database), 10), diverged_round=10, **end)
    write(database, runs.finish, commit(database, claim(database), 4), stop_reason=StopReason.PATIENCE, **end)
    assert extend(database, made, 20).status is Status.SUCCEEDED
    assert standing(database, made) == [(3, "succeeded", 10, 20), (1, "succeeded", 4, 20)]


@pytest.mark.parametrize(
    ("wish", "then"), [(None, "queued"), (lifecycle.pause, "paused"), (lifecycle.cancel, "cancelled")]
)
def test_a_worker_that_has_a_run_loses_it_and_what_was_requested_holds(
    database: Database, wish: Any, then: str
) -> None:
    made = submit(database, **TEN | {"seeds": [3]})
    held = claim(database)
    if wish:
        write(database, wish, made.id)
    extend(database, made, 20, [4])
    assert standing(database, made)[0] == (3, then, 0, 20)
    with pytest.raises(StaleLeaseError):
        commit(database, held, 10)


def test_paused_runs_stay_paused_and_new_runs_wait_with_them(database: Database) -> None:
    made = submit(database, **TEN)
    finish(database, claim(database))
    write(database, lifecycle.pause, made.id)
    assert extend(database, made, 20, [5]).status is Status.PAUSED
    assert {status for _, status, _, _ in standing(database, made)} == {"paused"}


SEARCH = {
    "search": {"kind": "successive_halving", "metric": "suboptimality", "min_rounds": 2, "eta": 3},
    "sweep": {"local.lr": [0.1, 0.2, 0.3]},
}
STEPS = {"local": {"lr": 0.1, "steps": 2, "lr_schedule": {"kind": "step", "at": [0.5], "factor": 0.1}}}


@pytest.mark.parametrize(
    ("changes", "rounds", "told"),
    [
        ({}, 9, "has 10 rounds, which cannot be reduced to 9"),
        (SEARCH, 20, "decisions of the search depend on rounds and seeds"),
        ({"sweep": {"rounds": [10, 20]}}, 20, "have different numbers of rounds"),
        (STEPS, 20, "its step size fell after round 5, not 10"),
        (
            {"evaluation": {"every": 3}},
            20,
            "round 10 was evaluated as the last one, and is not a multiple of evaluation.every, 3",
        ),
    ],
)
def test_extensions_that_would_have_had_another_past_are_refused(
    database: Database, changes: dict[str, Any], rounds: int, told: str
) -> None:
    made = submit(database, **TEN | changes)
    while (held := write(database, runs.claim, claimant(), LEASE_S)) and not held.spec["search"]:
        finish(database, held)
    before = standing(database, made)
    with pytest.raises(StateConflictError, match=told):
        extend(database, made, rounds)
    assert standing(database, made) == before


@pytest.mark.parametrize("changes", [STEPS, {"evaluation": {"every": 3}}])
def test_runs_not_played_yet_have_no_past(database: Database, changes: dict[str, Any]) -> None:
    made = submit(database, **TEN | changes)
    assert extend(database, made, 20).spec["rounds"] == 20


def test_a_trace_that_is_too_short_points_at_the_rounds(database: Database) -> None:
    made = submit(database, **TEN | {"participation": {"kind": "trace", "rounds": [[0]] * 10}})
    with pytest.raises(SpecificationError, match="a row for each of the 20 rounds, not 10") as refused:
        extend(database, made, 20)
    assert refused.value.pointer == "/rounds"


def test_nothing_goes_on_where_all_runs_ended_badly_or_there_is_none(database: Database) -> None:
    made = submit(database, **TEN)
    write(database, lifecycle.cancel, made.id)
    with pytest.raises(StateConflictError, match="use `retry` to continue them"):
        extend(database, made, 20)
    with pytest.raises(ResourceNotFoundError):
        write(database, extension.extend, "exp_none", rounds=20, seeds=[], measure=lambda _: [])


def test_more_runs_than_the_key_may_have_are_refused(database: Database) -> None:
    with database.transaction() as session:
        record, _ = keys.create(session, owner="ann", scope=Scope.SUBMIT, max_waiting_runs=2)
        made = experiments.create(
            session, NewExperiment(specification(ONE_RUN, **TEN), owner="ann", key_id=record.id)
        ).record
    with pytest.raises(QuotaError, match="3 queued or paused runs"):
        extend(database, made, seeds=[5], key_id=record.id)
    assert len(runs_of(database, made)) == 2
