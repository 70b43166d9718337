"""Progress on a terminal, and where there is none."""

from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest

from fedcore.platform.status import Status
from fedq.client.progress import MOST_BARS, report
from fedq.console import PlainConsole
from fedq.schemas import RoundEvent, Run, StatusEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_terminal_shows_a_bar_per_run_with_its_accuracy() -> None:
    console, runs = _console(terminal=True), [_run(seed) for seed in range(3)]
    with report(runs, console) as tell:
        tell(_row(runs[1], 5, test_accuracy=0.8125))
    (line,) = [line for line in _last_frame(console) if "seed 1" in line]
    assert line.rstrip().endswith("test accuracy 81.25 %")
    assert sum("fedavg, seed" in line for line in _last_frame(console)) == 3
    assert any("5/10" in line for line in _last_frame(console))


def test_a_run_that_ends_before_its_last_round_fills_its_bar() -> None:
    console, runs = _console(terminal=True), [_run(0)]
    with report(runs, console) as tell:
        tell(_row(runs[0], 4))
        tell(_ended(runs[0], Status.SUCCEEDED, 4))
    assert any("4/4" in line for line in _last_frame(console))


def test_more_runs_than_a_screen_holds_share_one_bar() -> None:
    console, runs = _console(terminal=True), [_run(seed) for seed in range(MOST_BARS + 1)]
    with report(runs, console) as tell:
        # Whoever begins to watch now is told the newest round first.
        tell(_row(runs[0], 3))
        tell(_row(runs[0], 4))
        tell(_ended(runs[0], Status.FAILED, 4))
    (line,) = [line for line in _last_frame(console) if "41 runs" in line]
    assert "4/410" in line
    assert "1 of 41 runs finished" in line


@pytest.mark.parametrize(
    ("status", "rounds", "told"),
    [
        (Status.SUCCEEDED, 3, "succeeded after 3 rounds"),
        (Status.FAILED, 3, "failed after 3 rounds"),
        (Status.SUCCEEDED, 1, "succeeded after 1 round"),
    ],
)
def test_a_file_gets_a_line_per_ended_run(status: Status, rounds: int, told: str) -> None:
    console, run = _console(terminal=False), _run(0)
    with report([run], console) as tell:
        tell(_row(run, rounds, extra={"suboptimality": 0.5}))
        tell(_ended(run, status, rounds))
    assert _text(console) == f"fedavg, seed 0: {told}, suboptimality 0.5\n"


def _console(*, terminal: bool) -> PlainConsole:
    return PlainConsole(
        file=StringIO(), force_terminal=terminal, width=100, height=MOST_BARS + 5, color_system=None
    )


def _text(console: PlainConsole) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _last_frame(console: PlainConsole) -> list[str]:
    return _text(console).rpartition("\x1b[2K")[2].splitlines() or _text(console).splitlines()


def _run(seed: int) -> Run:
    given: dict[str, Any] = dict.fromkeys(Run.model_fields)
    identity = {
        "id": f"run_{seed}",
        "experiment_id": "exp_1",
        "arm": 0,
        "arm_name": "fedavg",
        "settings": {},
        "seed": seed,
    }
    return Run.model_construct(
        **(given | identity | {"status": Status.QUEUED, "rounds_done": 0, "rounds_total": 10})
    )


def _row(run: Run, round: int, **values: Any) -> RoundEvent:
    given: dict[str, Any] = {"train_loss": None, "test_loss": None, "test_accuracy": None, "extra": {}}
    sent = {"local_steps": 1, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1, "committed_at": NOW}
    return RoundEvent(run_id=run.id, round=round, **(given | sent | values))


def _ended(run: Run, status: Status, rounds_done: int) -> StatusEvent:
    return StatusEvent(experiment_id=run.experiment_id, run_id=run.id, status=status, rounds_done=rounds_done)
