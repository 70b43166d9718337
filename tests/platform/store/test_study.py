"""Studies: trials are proposed once all earlier ones have ended, in the transaction of the last,
whoever comes last and whatever happens meanwhile.
"""

import math
from random import Random
from typing import Any

import pytest

from fedcore.platform.store import Database, Status, experiments, open_database, runs, search
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.simulation.study import first_trials, next_trials, propose
from fedcore.spec import stored_spec
from fedcore.spec.search import Study
from fedcore.spec.space import Settings
from tests.platform.store.acts import (
    QUEUE,
    claim,
    fail,
    on_sqlite,
    park,
    read,
    record,
    report,
    status_of,
    submit,
    the_runs,
    write,
)

SPACE = {
    "local.lr": {"kind": "float", "low": 0.001, "high": 1.0, "log": True},
    "local.steps": {"kind": "int", "low": 1, "high": 9},
}
STUDY = {
    "kind": "study",
    "metric": "suboptimality",
    "sampler": "cmaes",  # which learns from the first results on
    "trials": 8,
    "parallel": 3,
    "space": SPACE,
}


def studied(database: Database, *, seeds: tuple[int, ...] = (0, 1), **changes: Any) -> ExperimentRecord:
    return submit(database, rounds=2, seeds=list(seeds), search=STUDY | changes)


def objective(settings: Settings, seed: int) -> float:
    return (math.log10(settings["local.lr"]) + 1) ** 2 + (settings["local.steps"] - 3) ** 2 + seed


def come(database: Database, held: Claim) -> None:
    """Run to the end; the first round is better than the last by 10."""
    (run,) = (one for one in read(database, runs.of_experiment, held.experiment_id) if one.id == held.run_id)
    value = objective(run.settings, run.seed)
    rounds = [report(round, extra={"suboptimality": value - 10 * (2 - round)}) for round in (1, 2)]
    record(database, held, rounds)
    park(database, held.at(2, f"{held.run_id}/2-{held.fence}.safetensors"))


def drain(database: Database, draw: Random | None = None) -> None:
    under_way: list[Claim] = []
    while True:
        while held := write(database, runs.claim, "worker-1", [QUEUE], 60.0):
            under_way.append(held)
        if not under_way:
            return
        come(database, under_way.pop(draw.randrange(len(under_way)) if draw else 0))


def proposed(database: Database, experiment: ExperimentRecord) -> tuple[Settings, ...]:
    found = stored_spec(read(database, experiments.find, experiment.id).spec).search
    assert isinstance(found, Study)
    return found.proposed


def expected(seeds: tuple[int, ...] = (0, 1), **changes: Any) -> tuple[Settings, ...]:
    """All proposals, longhand."""
    known = Study.model_validate(STUDY | changes)
    best = 10 if known.round == "best" else 0
    values: list[float] = []
    count = first_trials(known)
    while count:
        known = known.model_copy(update={"proposed": (*known.proposed, *propose(known, values, count))})
        values = [sum(objective(one, seed) - best for seed in seeds) / len(seeds) for one in known.proposed]
        count = next_trials(known)
    return known.proposed


@pytest.mark.parametrize("seed", range(2))
def test_proposals_do_not_depend_on_the_order_in_which_runs_end(database: Database, seed: int) -> None:
    experiment = studied(database)
    drain(database, Random(seed))
    assert status_of(database, experiment) is Status.SUCCEEDED
    assert proposed(database, experiment) == expected()
    for run in the_runs(database, experiment):
        assert run.status is Status.SUCCEEDED
        assert run.settings == expected()[run.arm]
        assert run.arm_name.startswith(f"trial {run.arm}: lr=")


@on_sqlite
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_other_samplers_are_asked_the_same_way(database: Database, sampler: str) -> None:
    experiment = studied(database, seeds=(0,), sampler=sampler, trials=14, parallel=5)
    drain(database)
    assert proposed(database, experiment) == expected((0,), sampler=sampler, trials=14, parallel=5)


def test_a_study_goes_on_in_another_process_after_each_run(database: Database, database_url: str) -> None:
    """Nothing is kept but the rows: as after kill -9."""
    experiment = studied(database)
    while True:
        again = open_database(database_url)
        held = write(again, runs.claim, "worker-1", [QUEUE], 60.0)
        if held is not None:
            come(again, held)
        again.close()
        if held is None:
            break
    assert proposed(database, experiment) == expected()


@on_sqlite
def test_only_trials_whose_settings_are_known_are_queued(database: Database) -> None:
    experiment = studied(database)
    by_arm = {run.arm: run.status for run in the_runs(database, experiment)}
    assert by_arm == {arm: Status.QUEUED if arm < 3 else Status.AT_RUNG for arm in range(8)}
    for _ in range(5):
        come(database, claim(database))
    assert len(proposed(database, experiment)) == 3
    come(database, claim(database))
    assert len(proposed(database, experiment)) == 6
    found = read(database, search.arrivals, experiment.id)
    assert [one.value for one in sorted(found, key=lambda one: one.arm)] == [
        sum(objective(settings, seed) for seed in (0, 1)) / 2 for settings in expected()[:3]
    ]
    assert all(one.verdict is None for one in found)


@on_sqlite
def test_the_best_round_counts_where_that_is_asked_for(database: Database) -> None:
    experiment = studied(database, round="best")
    drain(database)
    found = read(database, search.arrivals, experiment.id)
    values = {one.arm: one.value for one in found}
    assert values[0] == pytest.approx(sum(objective(expected()[0], seed) for seed in (0, 1)) / 2 - 10)
    assert proposed(database, experiment) == expected(round="best")


@on_sqlite
def test_a_trial_with_a_failed_run_has_no_value_and_the_study_goes_on(database: Database) -> None:
    experiment = studied(database, trials=6)
    fail(database, claim(database))
    drain(database)
    values = {one.arm: one.value for one in read(database, search.arrivals, experiment.id)}
    assert [arm for arm, value in values.items() if value is None] == [0]
    assert len(values) == 6
    assert status_of(database, experiment) is Status.FAILED
    write(database, experiments.retry, experiment.id)
    drain(database)
    assert status_of(database, experiment) is Status.SUCCEEDED
    # What followed from the failure stands.
    assert values == {one.arm: one.value for one in read(database, search.arrivals, experiment.id)}


@on_sqlite
def test_what_is_proposed_while_a_study_is_paused_waits_for_its_resumption(database: Database) -> None:
    experiment = studied(database, seeds=(0,))
    held = [claim(database) for _ in range(3)]
    write(database, experiments.pause, experiment.id)
    for one in held:
        come(database, one)
    assert len(proposed(database, experiment)) == 6
    assert write(database, runs.claim, "worker-1", [QUEUE], 60.0) is None
    assert status_of(database, experiment) is Status.PAUSED
    write(database, experiments.resume, experiment.id)
    drain(database)
    assert proposed(database, experiment) == expected((0,))


@on_sqlite
def test_a_cancelled_study_that_is_retried_proposes_the_same(database: Database) -> None:
    experiment = studied(database)
    come(database, claim(database))
    write(database, experiments.cancel, experiment.id)
    assert status_of(database, experiment) is Status.CANCELLED
    write(database, experiments.retry, experiment.id)
    drain(database)
    assert proposed(database, experiment) == expected()


@on_sqlite
def test_settings_that_are_not_valid_together_fail_their_trial(database: Database) -> None:
    """Between 3 and 1 steps there is no number."""
    either = {"kind": "choice", "values": [1, 3]}
    space = {"systems.steps.low": either, "systems.steps.high": either}
    given = [
        {"systems.steps.low": low, "systems.steps.high": high}
        for low, high in ((3, 1), (1, 3), (3, 3), (3, 1))
    ]
    experiment = submit(
        database,
        local={"steps": None, "lr": 0.1},
        systems={"steps": {"kind": "uniform", "low": 1, "high": 3}},
        search=STUDY | {"sampler": "random", "trials": 4, "parallel": 2, "proposed": given, "space": space},
    )
    ends = {run.arm: (run.status, run.error) for run in the_runs(database, experiment)}
    assert [arm for arm, (status, _) in ends.items() if status is Status.FAILED] == [0, 3]
    assert "must not exceed" in str(ends[0][1])
    values = {one.arm: one.value for one in read(database, search.arrivals, experiment.id)}
    assert values == {0: None, 3: None}
    assert status_of(database, experiment) is Status.QUEUED


@on_sqlite
def test_a_study_none_of_whose_trials_is_valid_has_failed(database: Database) -> None:
    either = {"kind": "choice", "values": [1, 3]}
    experiment = submit(
        database,
        local={"steps": None, "lr": 0.1},
        systems={"steps": {"kind": "uniform", "low": 1, "high": 3}},
        search=STUDY
        | {
            "sampler": "random",
            "trials": 1,
            "proposed": [{"systems.steps.low": 3, "systems.steps.high": 1}],
            "space": {"systems.steps.low": either, "systems.steps.high": either},
        },
    )
    assert status_of(database, experiment) is Status.FAILED
