"""A worker's turns with its runs, in this process: no fork, no message, a stop at a slice of the
test's choice.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

import pytest

from fedcore.platform.store import Session, Status, experiments, lifecycle
from fedcore.platform.store.tables import RunRecord
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from tests.builders.specifications import merged
from tests.support.silence import knocks
from tests.workers.deployment import EXPERIMENT, PRODUCTION_IN_CI, Deployment, assert_undisturbed
from tests.workers.throttled_worker import SHORT_SLICES
from workers.claimed_run import Pacing
from workers.runner import WarmUp

ROUNDS = EXPERIMENT["rounds"]


@pytest.mark.slow
@PRODUCTION_IN_CI
def test_a_run_that_is_handed_back_again_and_again_goes_on_each_time(deployment: Deployment) -> None:
    experiment = deployment.submit(nudge=False)
    for stop in (1, 2, 10, 30):
        _work_until(deployment, experiment, stop)
        handed_back = deployment.run(experiment)
        assert handed_back.status is Status.QUEUED
        assert stop <= handed_back.done == len(deployment.rows(handed_back.id)) < ROUNDS
    with deployment.runner() as runner:
        runner.work()
    assert_undisturbed(deployment, deployment.run(experiment))


def _write(deployment: Deployment, act: Callable[[Session, str], object], id: str) -> None:
    with deployment.database.transaction() as session:
        act(session, id)


def _urgent(deployment: Deployment, _: str) -> None:
    deployment.submit(
        merged(EXPERIMENT, {"name": "urgent", "rounds": 1, "execution": {"priority": 9}}), nudge=False
    )


WISHES: dict[str, Callable[[Deployment, str], None]] = {
    "pause": lambda deployment, id: _write(deployment, lifecycle.pause, id),
    "cancel": lambda deployment, id: _write(deployment, lifecycle.cancel, id),
    "a run of higher priority": _urgent,
    "a lower priority": lambda deployment, id: _write(deployment, partial(experiments.edit, priority=1), id),
}


@pytest.mark.parametrize("wish", WISHES)
def test_request_of_a_user_while_a_round_is_played_takes_effect_after_it(
    embedded: Deployment, wish: str
) -> None:
    """Slices and leases are long, so it is neither the end of a slice nor the heartbeat that shows
    it.
    """
    deployment = embedded.with_settings(slice_seconds=3600, lease_seconds=3600)
    experiment = deployment.submit(merged(EXPERIMENT, {"name": "patient", "rounds": 9}), nudge=False)
    played: list[str] = []

    class WithAWish(Simulation):
        def advance(self) -> RoundReport:
            played.append(self.spec.name)
            if len(played) == 5:
                if wish == "a lower priority":
                    deployment.submit(merged(EXPERIMENT, {"name": "another", "rounds": 1}), nudge=False)
                WISHES[wish](deployment, experiment)
            return super().advance()

    with deployment.runner(create=WithAWish, pacing=Pacing(look_s=0.0, look_share=inf)) as runner:
        runner.work()
    run = deployment.run(experiment)
    if wish in ("pause", "cancel"):
        assert (run.status, run.done, len(deployment.rows(run.id))) == (
            {"pause": "paused", "cancel": "cancelled"}[wish],
            5,
            5,
        )
    else:
        assert played[4:7] == [
            "patient",
            "urgent" if wish == "a run of higher priority" else "another",
            "patient",
        ]
        assert (run.status, run.done) == ("succeeded", 9)


def test_a_worker_of_several_queues_takes_from_them_in_turn(embedded: Deployment) -> None:
    deployment = embedded.with_settings(queues="cpu,gpu")
    for name, queue in product(("first", "second"), ("cpu", "gpu")):
        document = {"name": name, "rounds": 1, "execution": {"queue": queue}}
        deployment.submit(merged(EXPERIMENT, document), nudge=False)
    played: list[str] = []

    class Played(Simulation):
        def advance(self) -> RoundReport:
            played.append(self.spec.execution.queue)
            return super().advance()

    with deployment.runner(create=Played) as runner:
        runner.work()
    assert played == ["cpu", "gpu"] * 2


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None], ids=["empty", "zeros", "missing"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    embedded: Deployment, damage: bytes | None
) -> None:
    experiment = embedded.submit(nudge=False)
    _work_until(embedded, experiment, 3)
    stopped = embedded.run(experiment)
    assert stopped.checkpoint is not None
    if damage is None:
        embedded.storage.delete(stopped.checkpoint)
    else:
        embedded.storage.put(stopped.checkpoint, damage)
    with embedded.runner() as runner:
        runner.work()
    assert_undisturbed(embedded, embedded.run(experiment))


def test_a_run_with_no_readable_checkpoint_is_played_again_from_the_start_to_the_same_bits(
    embedded: Deployment,
) -> None:
    experiment = embedded.submit(nudge=False)
    _work_until(embedded, experiment, 20)
    embedded.storage.delete_prefix(embedded.run(experiment).id)
    with embedded.runner() as runner:
        runner.work()
    assert_undisturbed(embedded, embedded.run(experiment))


@pytest.mark.slow
def test_a_run_goes_on_with_the_engine_that_its_first_slice_recorded(embedded: Deployment) -> None:
    experiment = embedded.submit(
        merged(EXPERIMENT, {"rounds": 6, "execution": {"engine": "auto"}}), nudge=False
    )
    _work_until(embedded, experiment, 1)
    before = embedded.run(experiment)
    assert before.provenance["engine_choice"]["engine"] == before.provenance["engine"] != "parallel"
    elsewhere = {"engine": "parallel", "how": "rule"}
    with embedded.database.transaction() as session:
        session.get_one(RunRecord, before.id).provenance = before.provenance | {"engine_choice": elsewhere}
    embedded.storage.delete_prefix(before.id)
    with embedded.runner() as runner:
        runner.work()
    after = embedded.run(experiment)
    assert (after.status, after.provenance["engine"], after.provenance["engine_choice"]) == (
        Status.SUCCEEDED,
        "parallel",
        elsewhere,
    )


def test_two_checkpoints_of_a_run_are_kept(embedded: Deployment) -> None:
    experiment = embedded.submit(nudge=False)
    for stop in (1, 5, 10):
        _work_until(embedded, experiment, stop)
    run = embedded.run(experiment)
    assert len(kept := embedded.storage.keys(run.id)) == 2
    assert run.checkpoint in kept


def test_arms_and_seeds_are_carried_out_and_paired(embedded: Deployment) -> None:
    document = merged(
        EXPERIMENT, {"rounds": 3, "seeds": [0, 1], "sweep": {"algorithm.kind": ["fedavg", "scaffold"]}}
    )
    experiment = embedded.submit(document, nudge=False)
    with embedded.runner() as runner:
        runner.work()
    runs = embedded.runs(experiment)
    assert {(run.arm, run.seed, run.status) for run in runs} == {
        (arm, seed, Status.SUCCEEDED) for arm in (0, 1) for seed in (0, 1)
    }
    steps = {(run.arm, run.seed): [row.local_steps for row in embedded.rows(run.id)] for run in runs}
    assert steps[0, 0] == steps[1, 0] != steps[0, 1] == steps[1, 1]


def test_a_diverged_run_is_a_result_and_says_in_which_round(embedded: Deployment) -> None:
    experiment = embedded.submit(
        merged(EXPERIMENT, {"local": {"lr": 1e6}, "problem": {"model": {"l2": 1.0}}}), nudge=False
    )
    with embedded.runner() as runner:
        runner.work()
    run = embedded.run(experiment)
    assert (run.status, run.diverged_round) == (Status.SUCCEEDED, run.done)
    assert len(embedded.rows(run.id)) == run.done < ROUNDS


def test_a_run_whose_data_stay_away_fails_and_says_what_is_missing(embedded: Deployment) -> None:
    document = merged(
        EXPERIMENT, {"problem": {"dataset": {"kind": "mnist"}, "partition": {"kind": "iid", "clients": 10}}}
    )
    experiment = embedded.submit(document, nudge=False)
    with embedded.with_settings(data_dir=embedded.folder / "nothing").runner() as runner:
        runner.work()
    run = embedded.run(experiment)
    assert (run.status, run.fence, run.attempts) == (Status.FAILED, 3, 3)
    assert run.error is not None
    assert "FEDQ_DATA_DIR" in run.error


def test_a_fault_that_passes_costs_an_attempt_and_one_that_stays_fails_the_run(embedded: Deployment) -> None:
    experiment = embedded.submit(nudge=False)
    _work_until(embedded, experiment, 3)
    done = embedded.run(experiment).done
    (embedded.folder / "storage").rename(embedded.folder / "elsewhere")
    (embedded.folder / "storage").write_text("a file where a folder should be")
    with embedded.runner(pacing=replace(SHORT_SLICES, retry_s=0)) as runner:
        runner.work()
    run = embedded.run(experiment)
    assert (run.status, run.attempts, run.done) == (Status.FAILED, 3, done)
    assert run.error is not None
    assert "NotADirectoryError" in run.error


def _work_until(deployment: Deployment, experiment: str, done: int) -> None:
    """Play until at least `done` rounds are committed.

    Then the worker is asked to end, and hands the run back.
    """
    with deployment.with_settings(slice_seconds=0.001).runner(
        stopping=lambda: deployment.run(experiment).done >= done
    ) as runner:
        runner.work()


def test_a_broker_that_hangs_does_not_hold_up_a_worker_that_has_taken_a_run(embedded: Deployment) -> None:
    """It would call others before it keeps the run's lease, a queue after another."""
    queues = [f"queue-{number}" for number in range(5)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        deployment = embedded.with_settings(broker_url=url, queues=",".join(["default", *queues]))
        experiment = deployment.submit(merged(EXPERIMENT, {"rounds": 2}), nudge=False)
        with deployment.runner() as runner:
            runner.work()
            assert knocks(silent) <= len(queues)
    assert_undisturbed(deployment, deployment.run(experiment))


# Warm-up of an idle worker before its first run.


class RecordedSimulation:
    """Records the models of the rounds that are executed; `during` is called in each."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.advanced: list[str] = []
        self.during: Callable[[], None] = lambda: None

    def __call__(self, spec: ExperimentSpec, _seed: int, **_: Any) -> Any:
        assert spec.problem.model is not None
        self.created.append(spec.problem.model.kind)
        return self

    def advance(self) -> None:
        self.advanced.append(self.created[-1])
        self.during()


def test_warm_up_executes_a_round_of_each_of_the_models_that_are_tried_first() -> None:
    rounds = RecordedSimulation()
    WarmUp("cpu", 0.0, rounds).run()
    assert rounds.advanced == ["logistic", "mlp"]


def test_a_worker_that_has_work_begins_no_further_step() -> None:
    rounds = RecordedSimulation()
    busy = WarmUp("cpu", 0.0, rounds)
    rounds.during = busy.stop
    busy.run()
    assert rounds.created == ["logistic"]


def test_a_worker_that_finds_work_at_once_warms_nothing_up() -> None:
    rounds = RecordedSimulation()
    began, thread = time.monotonic(), WarmUp("cpu", 60.0, rounds)
    thread.start()
    thread.stop()
    thread.join()
    assert time.monotonic() - began < 60
    assert not rounds.created


def test_an_error_is_left_to_the_runs_that_need_it(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("no such device")

    WarmUp("cuda:9", 0.0, broken).run()
    assert "no such device" in caplog.text
