"""Warm-up of an idle worker before its first run."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedcore.simulation.simulation import Simulation
from workers import warmup
from workers.warmup import WarmUp


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rounds that are played, noted instead."""
    played: list[str] = []
    monkeypatch.setattr(Simulation, "advance", lambda self: played.append(self.spec.problem.model.kind))
    monkeypatch.setattr(warmup, "IDLE_S", 0.0)
    return played


def count_of(monkeypatch: pytest.MonkeyPatch) -> list[Simulation]:
    """The simulations that are made from now on."""
    made: list[Simulation] = []

    def noted(*given: Any, **named: Any) -> Simulation:
        made.append(Simulation(*given, **named))
        return made[-1]

    monkeypatch.setattr(warmup, "Simulation", noted)
    return made


def test_it_plays_a_round_of_each_of_the_models_that_are_tried_first(
    tmp_path: Path, steps: list[str]
) -> None:
    WarmUp("cpu", tmp_path).run()
    assert steps == ["logistic", "mlp"]


def test_a_worker_that_has_work_begins_no_further_step(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = WarmUp("cpu", tmp_path)
    monkeypatch.setattr(Simulation, "advance", lambda _: busy.stop())
    made = count_of(monkeypatch)
    busy.run()
    assert len(made) == 1
    assert not steps


def test_a_worker_that_finds_work_at_once_warms_nothing_up(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "IDLE_S", 60.0)
    began, thread = time.monotonic(), WarmUp("cpu", tmp_path)
    thread.start()
    thread.stop()
    thread.join()
    assert time.monotonic() - began < 60
    assert not steps


def test_what_goes_wrong_is_left_to_the_runs_that_need_it(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(warmup, "Simulation", broken)
    WarmUp("cuda:9", tmp_path).run()
    assert not steps
