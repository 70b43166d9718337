"""The time of a bundle is counted: what it computes and sleeps, and not what a busy machine keeps it
waiting.
"""

import time
from pathlib import Path

import pytest

from fedcore.errors import BusyError, UserCodeError
from fedcore.settings import Settings
from tests.support.scripted_bundles import SILENT, ScriptedProcess, ScriptedSandbox, closing_session
from tests.workers.confined.conftest import packed
from workers.confined import sandbox
from workers.confined.sandbox import Sandbox

LIMIT_S = 0.4


@pytest.mark.parametrize(
    ("processes", "error"),
    [
        ([(1.0, "running")], UserCodeError),
        ([(0.0, "sleeping")], UserCodeError),
        ([(0.0, "stopped")], UserCodeError),
        ([(0.0, "sleeping"), (0.0, "zombie")], UserCodeError),
        ([(0.5, "running"), (0.5, "sleeping")], UserCodeError),
        ([], UserCodeError),
        ([(0.05, "running")], BusyError),
        ([(0.0, "disk-sleep")], BusyError),
        ([(0.0, "sleeping"), (0.0, "running")], BusyError),
        # One thread of a process has computed, and its first one sleeps.
        ([(0.05, "sleeping")], BusyError),
    ],
    ids=str,
)
def test_a_step_is_ended_by_its_own_time_or_by_the_clock(
    processes: list[tuple[float, str]], error: type[Exception]
) -> None:
    scripted = [ScriptedProcess(share, status) for share, status in processes]
    began = time.monotonic()
    with (
        closing_session(ScriptedSandbox(lambda _: SILENT, processes=scripted)) as session,
        pytest.raises(error) as ended,
    ):
        session.request({"do": "advance"}, LIMIT_S, clock_s=2 * LIMIT_S)
    assert type(ended.value) is error
    assert time.monotonic() - began > (LIMIT_S if error is UserCodeError else 2 * LIMIT_S)


def test_processes_together_use_no_more_time_than_passes() -> None:
    scripted = [ScriptedProcess(1.0, "running")] * 16
    began = time.monotonic()
    with (
        closing_session(ScriptedSandbox(lambda _: SILENT, processes=scripted)) as session,
        pytest.raises(UserCodeError, match="longer than"),
    ):
        session.request({"do": "advance"}, LIMIT_S)
    assert time.monotonic() - began > LIMIT_S


def test_libraries_that_are_not_loaded_in_time_are_the_machines_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "START_S", 0.01)
    with pytest.raises(BusyError, match="no libraries were loaded"):
        Sandbox(packed(tmp_path / "mylab"), Settings(_env_file=None, code_confinement="limits"))
