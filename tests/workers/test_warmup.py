"""Warm-up of an idle worker before its first run."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from fedcore.spec import ExperimentSpec
from workers.runner import WarmUp


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


def test_it_executes_a_round_of_each_of_the_models_that_are_tried_first() -> None:
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
