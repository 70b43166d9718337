"""Studies: trials are proposed once all earlier ones have ended, in the transaction of the last,
whoever comes last and whatever happens meanwhile.
"""

import math
from random import Random
from typing import Any

import pytest

from fedcore.platform.store import (
    Database,
    Status,
    experiments,
    lifecycle,
    open_database,
    runs,
    search,
    study,
)
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.simulation.halving import Verdict
from fedcore.simulation.pruning import decide, rungs
from fedcore.simulation.report import StopReason
from fedcore.simulation.study import TrialResult, first_trials, next_trials, propose
from fedcore.spec import stored_spec
from fedcore.spec.search import Batch, Study, list_batches
from fedcore.spec.space import Settings
from tests.builders.claims import claim, claimant, commit_slice, fail, pause_or_finish, report
from tests.builders.experiments import runs_of, status_of, submit
from tests.builders.transactions import on_sqlite, read, write
from tests.conftest import DATABASES

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
    """Run to where it is judged; each round is worse than the one before by 10."""
    (run,) = (one for one in read(database, runs.of_experiment, held.experiment_id) if one.id == held.run_id)
    if held.done < held.until:
        value, left = objective(run.settings, run.seed), held.rounds - 2
        rounds = [
            report(
                round, bytes_up=sent(run.settings), extra={"suboptimality": value - 10 * (2 + left - round)}
            )
            for round in range(held.done + 1, held.until + 1)
        ]
        commit_slice(database, held, rounds)
    pause_or_finish(database, held.at(held.until, f"{held.run_id}/{held.until}-{held.fence}.safetensors"))


def sent(settings: Settings) -> int:
    """Bytes, fewer where the value is higher."""
    return 1000 * settings["local.steps"]


def drain(database: Database, draw: Random | None = None) -> None:
    under_way: list[Claim] = []
    while True:
        while held := write(database, runs.claim, claimant(), 60.0):
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
    count = first_trials(known, 2)
    while count:
        results = [TrialResult((value,)) for value in values]
        known = known.model_copy(update={"proposed": (*known.proposed, *propose(known, results, count, 2))})
        values = [sum(objective(one, seed) - best for seed in seeds) / len(seeds) for one in known.proposed]
        count = next_trials(known, 2)
    return known.proposed


@pytest.mark.parametrize("seed", range(2))
def test_proposals_do_not_depend_on_the_order_in_which_runs_end(database: Database, seed: int) -> None:
    experiment = studied(database)
    drain(database, Random(seed))
    assert status_of(database, experiment) is Status.SUCCEEDED
    longhand = expected()
    assert proposed(database, experiment) == longhand
    for run in runs_of(database, experiment):
        assert run.status is Status.SUCCEEDED
        assert run.settings == longhand[run.arm]
        assert run.arm_name.startswith(f"trial {run.arm}: lr=")


@on_sqlite
@pytest.mark.parametrize("sampler", ["random", "tpe", pytest.param("gp", marks=pytest.mark.nightly)])
def test_other_samplers_are_asked_the_same_way(database: Database, sampler: str) -> None:
    experiment = studied(database, seeds=(0,), sampler=sampler, trials=14, parallel=5)
    drain(database)
    assert proposed(database, experiment) == expected((0,), sampler=sampler, trials=14, parallel=5)


def test_a_study_goes_on_in_another_process_after_each_run(database: Database, database_url: str) -> None:
    """Nothing is kept but the rows: as after kill -9."""
    experiment = studied(database)
    while True:
        again = open_database(database_url)
        held = write(again, runs.claim, claimant(), 60.0)
        if held is not None:
            come(again, held)
        again.close()
        if held is None:
            break
    assert proposed(database, experiment) == expected()


@on_sqlite
def test_only_trials_whose_settings_are_known_are_queued(database: Database) -> None:
    experiment = studied(database)
    by_arm = {run.arm: run.status for run in runs_of(database, experiment)}
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
    write(database, lifecycle.retry, experiment.id)
    drain(database)
    assert status_of(database, experiment) is Status.SUCCEEDED
    # What followed from the failure stands.
    assert values == {one.arm: one.value for one in read(database, search.arrivals, experiment.id)}


@on_sqlite
def test_trials_proposed_while_a_study_is_paused_wait_for_its_resumption(database: Database) -> None:
    experiment = studied(database, seeds=(0,))
    held = [claim(database) for _ in range(3)]
    write(database, lifecycle.pause, experiment.id)
    for one in held:
        come(database, one)
    assert len(proposed(database, experiment)) == 6
    assert write(database, runs.claim, claimant(), 60.0) is None
    assert status_of(database, experiment) is Status.PAUSED
    write(database, lifecycle.resume, experiment.id)
    drain(database)
    assert proposed(database, experiment) == expected((0,))


@on_sqlite
def test_a_cancelled_study_that_is_retried_proposes_the_same(database: Database) -> None:
    experiment = studied(database)
    come(database, claim(database))
    write(database, lifecycle.cancel, experiment.id)
    assert status_of(database, experiment) is Status.CANCELLED
    write(database, lifecycle.retry, experiment.id)
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
    ends = {run.arm: (run.status, run.error) for run in runs_of(database, experiment)}
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


PRUNED: dict[str, Any] = {"trials": 18, "parallel": 9, "sampler": "tpe"}
PRUNERS: list[dict[str, Any]] = [
    {"kind": "successive_halving", "min_rounds": 1},
    {"kind": "median", "min_rounds": 2, "startup_trials": 2},
]


def pruned_longhand(pruner: dict[str, Any], seeds: tuple[int, ...]) -> tuple[tuple[Settings, ...], list[int]]:
    """All proposals of a study of nine rounds, and the rounds that trials come to: the rule of the
    pruner, batch by batch, from nothing but the values.
    """
    known = Study.model_validate(STUDY | PRUNED | {"pruner": pruner})
    ends = rungs(known, 9)
    values: dict[tuple[int, int], float] = {}
    results: list[TrialResult] = []
    for first, last, _ in list_batches(known, 9):
        settings = propose(known, results, last - first, 9)
        known = known.model_copy(update={"proposed": (*known.proposed, *settings)})
        going, reached = set(range(first, last)), {}
        for rung, end in enumerate(ends):
            for trial in going:
                chosen = known.proposed[trial]
                means = [objective(chosen, seed) - 10 * (9 - end) for seed in seeds]
                values[trial, rung], reached[trial] = sum(means) / len(means), rung
            if end < 9:
                found = decide(known, 9, Batch(first, last, 0), rung, values)
                going = {one.arm for one in found if one.verdict is Verdict.PROMOTED}
        for trial in range(first, last):
            rung = reached[trial]
            results.append(TrialResult((values[trial, rung],), ends[rung] if ends[rung] < 9 else None))
    return known.proposed, [result.stopped or 9 for result in results]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "pruner"),
    [
        pytest.param(
            database,
            pruner,
            id=f"{database}-{pruner['kind']}",
            marks=() if one == other else pytest.mark.nightly,
        )
        for one, database in enumerate(DATABASES)
        for other, pruner in enumerate(PRUNERS)
    ],
    indirect=["database_url"],
)
def test_trials_are_stopped_whatever_the_order_of_workers_and_after_kill_9(
    database: Database, database_url: str, pruner: dict[str, Any]
) -> None:
    """Runs end in an order that is drawn, and every few of them in another process: nothing is kept
    but the rows.
    """
    experiment = submit(database, rounds=9, seeds=[0, 1], search=STUDY | PRUNED | {"pruner": pruner})
    draw, over = Random(3), False
    under_way: list[Claim] = []
    while not over:
        again = open_database(database_url)
        for _ in range(draw.randrange(4, 12)):
            while len(under_way) < 4 and (held := write(again, runs.claim, claimant(), 60.0)):
                under_way.append(held)
            over = not under_way
            if under_way:
                come(again, under_way.pop(draw.randrange(len(under_way))))
        again.close()
    wanted, ends = pruned_longhand(pruner, (0, 1))
    assert proposed(database, experiment) == wanted
    assert len(set(ends)) > 1
    for run in runs_of(database, experiment):
        assert (run.status, run.done) == (Status.SUCCEEDED, ends[run.arm])
        assert (run.stop_reason is StopReason.RUNG) == (run.done < 9)
    assert status_of(database, experiment) is Status.SUCCEEDED


@on_sqlite
def test_given_trials_of_later_batches_wait_for_the_decisions_about_earlier_ones(
    database: Database,
) -> None:
    """ASHA compares with all that came before: the second batch comes to its rung first."""
    given = [{"local.lr": 0.1, "local.steps": steps} for steps in (3, 4, 5, 6)]
    pruner = {"kind": "asha", "min_rounds": 1, "eta": 2}
    changes = {"sampler": "random", "trials": 4, "parallel": 2, "proposed": given, "pruner": pruner}
    experiment = submit(database, rounds=2, seeds=[0], search=STUDY | changes)
    held = [claim(database) for _ in range(4)]
    for one in reversed(held[1:]):
        come(database, one)
    assert not any(one.verdict for one in read(database, search.arrivals, experiment.id))
    come(database, held[0])
    drain(database)
    ends = [run.done for run in runs_of(database, experiment)]
    assert ends == [2, 1, 1, 1]  # one of two; then the best two of four were both there before
    assert status_of(database, experiment) is Status.SUCCEEDED


@on_sqlite
def test_hyperband_lets_each_bracket_begin_at_its_own_rung(database: Database) -> None:
    pruner = {"kind": "hyperband", "min_rounds": 1}
    experiment = submit(
        database, rounds=9, seeds=[0], search=STUDY | {"sampler": "random", "trials": 17, "pruner": pruner}
    )
    drain(database)
    ends = [[run.done for run in runs_of(database, experiment) if run.arm in arms] for arms in BRACKETS]
    assert [sorted(one) for one in ends] == [[1] * 6 + [3] * 2 + [9], [3] * 4 + [9], [9] * 3]
    assert status_of(database, experiment) is Status.SUCCEEDED


BRACKETS = (range(9), range(9, 14), range(14, 17))


@on_sqlite
def test_values_of_further_metrics_are_kept_and_lead_to_the_same_proposals(database: Database) -> None:
    changes: dict[str, Any] = {
        "sampler": "nsga2",
        "trials": 24,
        "parallel": 8,
        "further_metrics": [{"metric": "bytes_up", "mode": "min"}],
    }
    experiment = submit(database, rounds=2, seeds=[0, 1], search=STUDY | changes)
    drain(database, Random(2))
    known = Study.model_validate(STUDY | changes)
    for _ in range(3):
        results = [
            TrialResult((sum(objective(one, seed) for seed in (0, 1)) / 2, float(sent(one))))
            for one in known.proposed
        ]
        settings = propose(known, results, 8, 2)
        known = known.model_copy(update={"proposed": (*known.proposed, *settings)})
    assert proposed(database, experiment) == known.proposed
    for one in read(database, search.arrivals, experiment.id):
        assert one.further_values == [sent(known.proposed[one.arm])]


@pytest.mark.nightly
@on_sqlite
def test_without_pytorch_a_worker_proposes_by_the_gaussian_process(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the reconciler fails the last run of a batch: the next trial's runs go to workers,
    and as they are held again, the trials are proposed that always would have been.
    """
    experiment = studied(database, seeds=(0, 1), sampler="gp", trials=12, parallel=10)
    for _ in range(19):
        come(database, claim(database))
    last = claim(database)
    monkeypatch.setattr(study, "has_torch", lambda: False)
    come(database, last)
    assert len(proposed(database, experiment)) == 10
    monkeypatch.undo()
    asked = [claim(database) for _ in range(2)]
    assert {(one.arm, one.until, one.done) for one in asked} == {(10, 0, 0)}
    assert write(database, runs.claim, claimant(), 60.0) is None
    for one in asked:
        come(database, one)
    drain(database)
    assert proposed(database, experiment) == expected(sampler="gp", trials=12, parallel=10)
    assert status_of(database, experiment) is Status.SUCCEEDED
