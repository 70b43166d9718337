"""A driver plays runs in slices: every round is committed once, whatever stops it or fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest

from fedcore import Simulation, run
from fedcore.simulation.driver import Driver, Played
from fedcore.simulation.report import RoundReport
from fedcore.testing.runs import changed_tensors
from tests.builders.specifications import QUADRATIC, merged, specification

ROUNDS = 6
SPEC = specification(merged(QUADRATIC, {"rounds": ROUNDS}))


class Stored(Played):
    """A run that stores its rounds and its state in memory, and can be made to fail."""

    def __init__(self, seed: int, until: int = ROUNDS, fails_at: int | None = None) -> None:
        super().__init__(until)
        self.seed, self.fails_at = seed, fails_at
        self.simulation: Any = Simulation(SPEC, seed)
        self.rounds: list[int] = []
        self.state = self.simulation.checkpoint()
        self.events: list[str] = []

    @property
    def begun(self) -> bool:
        return bool(self.rounds)

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.released = True
            self.events.append("failed")

    def note(self, report: RoundReport) -> None:
        super().note(report)
        if report.round == self.fails_at:
            self.simulation.advance = self._fail

    def commit(self) -> bool:
        self.rounds += [report.round for report in self.reports]
        self.state = self.simulation.checkpoint()
        return super().commit()

    def complete(self) -> None:
        self.events.append("completed")

    def hand_back(self) -> None:
        self.events.append("handed back")

    def reload(self) -> None:
        self.reports = []
        self.simulation = Simulation(SPEC, self.seed)
        self.simulation.restore(self.state)
        self.events.append("reloaded")

    def _fail(self) -> RoundReport:
        raise ValueError


def played(runs: Sequence[Stored], **options: Any) -> list[tuple[int, int]]:
    options = {"slice_s": 0.0, "stopping": lambda: False, "saving_share": inf, **options}
    return [(run.seed, report.round) for run, report in Driver(runs, **options).play()]


@pytest.mark.parametrize("slice_s", [0.0, 3600.0])
def test_every_round_of_every_run_is_committed_once(slice_s: float) -> None:
    runs = [Stored(0), Stored(1, until=3)]
    seen = played(runs, slice_s=slice_s)
    assert sorted(seen) == [*((0, round) for round in range(1, ROUNDS + 1)), (1, 1), (1, 2), (1, 3)]
    assert [run.rounds for run in runs] == [list(range(1, ROUNDS + 1)), [1, 2, 3]]
    assert [run.events for run in runs] == [["completed"], ["completed"]]
    assert all(run.released for run in runs)


def test_what_is_stopped_has_committed_its_rounds_and_is_handed_back() -> None:
    run = Stored(0)
    played([run], slice_s=3600.0, stopping=lambda: run.simulation.round >= 4)
    assert (run.rounds, run.events) == ([1, 2, 3, 4], ["handed back"])


def test_a_run_whose_commit_says_so_leaves_and_the_others_go_on() -> None:
    class Leaving(Stored):
        def commit(self) -> bool:
            super().commit()
            return len(self.rounds) < 2

    runs = [Leaving(0), Stored(1)]
    played(runs)
    assert [run.rounds for run in runs] == [[1, 2], list(range(1, ROUNDS + 1))]
    assert [run.events for run in runs] == [["handed back"], ["completed"]]


def test_an_error_of_one_run_is_its_own() -> None:
    runs = [Stored(0, fails_at=2)]
    played(runs)
    assert (runs[0].rounds, runs[0].events) == ([1, 2], ["failed"])


def test_runs_that_fail_together_are_played_again_from_their_last_commit_and_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, errors = [Stored(0), Stored(1)], [MemoryError()]
    begin = Simulation.begin

    def failing(self: Simulation) -> Any:
        if self.seed == 1 and self.round == 3 and errors:
            raise errors.pop()
        return begin(self)

    monkeypatch.setattr(Simulation, "begin", failing)
    played(runs, slice_s=3600.0)
    assert not errors
    assert [run.rounds for run in runs] == [list(range(1, ROUNDS + 1))] * 2
    assert [run.events for run in runs] == [["reloaded", "completed"]] * 2
    alone = Stored(1)
    played([alone])
    assert not changed_tensors(runs[1].state, alone.state)


def test_a_caller_sees_each_round_once_where_a_batch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that had ended its round before the other failed is not a round ahead."""
    document = merged(QUADRATIC, {"rounds": 3, "execution": {"engine": "vectorised"}})
    spec, errors = specification(document, seeds=[0, 1]), [MemoryError()]
    expected = {(report.seed, report.round): report.train_loss for report in run(spec)}
    end = Simulation.end

    def failing(self: Simulation, *given: Any) -> RoundReport:
        if self.seed == 1 and self.round == 1 and errors:
            raise errors.pop()
        return end(self, *given)

    monkeypatch.setattr(Simulation, "end", failing)
    monkeypatch.setattr(Simulation, "benefits_from_batching", property(lambda _: True))
    found = [((report.seed, report.round), report.train_loss) for report in run(spec)]
    assert not errors
    assert len(found) == len(expected) == 6
    assert dict(found) == pytest.approx(expected, rel=1e-12)
