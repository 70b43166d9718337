"""The policy of fair turns, in a model without a database: whatever comes when, nobody starves and
nobody gains by it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.platform.store.fair_share import (
    FairShareState,
    OwnerQueue,
    OwnerUsage,
    RunCandidate,
    ScheduledRun,
    choose_candidate,
)

QUEUE, EPOCH = "default", datetime(2026, 1, 1, tzinfo=UTC)
OWNERS = "abcd"


@dataclass(frozen=True)
class Arrival:
    """A run that is submitted, and how long it takes."""

    at: int
    owner: str
    seconds: int
    priority: int = 5

    @property
    def place(self) -> OwnerQueue:
        return OwnerQueue(QUEUE, self.owner)


@dataclass(frozen=True)
class Start:
    """A run that is taken, and who else waited then."""

    at: int
    run: Arrival
    waiting: tuple[Arrival, ...]
    serving: Counter[str]


@dataclass
class Machine:
    """So many workers, which never leave a run that waits to itself.

    Each run is charged when it ends.
    """

    workers: int
    waiting: list[Arrival] = field(default_factory=list)
    busy: list[tuple[int, Arrival]] = field(default_factory=list)
    """Until when, with what."""
    accounts: defaultdict[OwnerQueue, OwnerUsage] = field(default_factory=lambda: defaultdict(OwnerUsage))
    clock: float = 0.0
    starts: list[Start] = field(default_factory=list)

    def run(self, arrivals: list[Arrival]) -> list[Start]:
        """Picks in order, to the end."""
        ahead, at = sorted(arrivals, key=lambda run: run.at), 0
        while ahead or self.waiting or self.busy:
            at = min(
                [run.at for run in ahead[:1]]
                + [until for until, _ in self.busy]
                + ([at] if self.waiting and self.free else [])
            )
            self.waiting += [run for run in ahead if run.at <= at]
            ahead = [run for run in ahead if run.at > at]
            self.end(at)
            while self.free and self.waiting:
                self.start(at)
        return self.starts

    @property
    def free(self) -> bool:
        return len(self.busy) < self.workers

    def end(self, at: int) -> None:
        for until, run in [entry for entry in self.busy if entry[0] <= at]:
            self.busy.remove((until, run))
            had = self.accounts[run.place]
            self.accounts[run.place] = OwnerUsage(had.seconds + run.seconds, had.lift)

    def start(self, at: int) -> None:
        serving = Counter(run.place for _, run in self.busy)
        choice = choose_candidate(
            map(self.flow, self.waiting), FairShareState([QUEUE], self.accounts, {QUEUE: self.clock}, serving)
        )
        assert choice is not None, "a worker idles while something waits"
        run = self.waiting[int(choice.flow.run_id)]
        self.starts.append(
            Start(
                at,
                run,
                tuple(self.waiting),
                Counter({place.owner: count for place, count in serving.items()}),
            )
        )
        self.note(run, choice)
        self.waiting.remove(run)
        self.busy.append((at + run.seconds, run))

    def note(self, run: Arrival, choice: ScheduledRun) -> None:
        had = self.accounts[run.place]
        assert choice.clock >= self.clock
        assert choice.lift >= had.lift
        self.accounts[run.place], self.clock = OwnerUsage(had.seconds, choice.lift), choice.clock

    def flow(self, run: Arrival) -> RunCandidate:
        return RunCandidate(
            run.place, "", run.priority, EPOCH + timedelta(seconds=run.at), f"{self.waiting.index(run):04}"
        )


runs = st.builds(Arrival, at=st.integers(0, 60), owner=st.sampled_from(OWNERS), seconds=st.integers(1, 15))
histories = st.lists(runs, min_size=1, max_size=30)
ranked = st.lists(
    st.builds(Arrival, st.integers(0, 60), st.sampled_from(OWNERS), st.integers(1, 15), st.integers(0, 9)),
    max_size=30,
)
sizes = st.integers(1, 4)


@given(ranked, sizes)
def test_every_run_is_taken_and_none_before_one_of_higher_priority(
    arrivals: list[Arrival], workers: int
) -> None:
    starts = Machine(workers).run(arrivals)
    assert sorted(map(repr, (start.run for start in starts))) == sorted(map(repr, arrivals))
    for start in starts:
        assert start.run.priority == max(run.priority for run in start.waiting)


@given(histories, sizes)
def test_nobody_gets_another_worker_while_somebody_who_waits_has_fewer(
    arrivals: list[Arrival], workers: int
) -> None:
    for start in Machine(workers).run(arrivals):
        assert start.serving[start.run.owner] == min(start.serving[run.owner] for run in start.waiting)


@given(histories, sizes, st.integers(0, 80))
def test_a_newcomer_waits_for_one_run_of_each_other_owner_at_most(
    arrivals: list[Arrival], workers: int, at: int
) -> None:
    newcomer = Arrival(at, "newcomer", 1)
    starts = Machine(workers).run([*arrivals, newcomer])
    (begin,) = [number for number, start in enumerate(starts) if start.run is newcomer]
    meanwhile = Counter(start.run.owner for start in starts[:begin] if newcomer in start.waiting)
    assert max(meanwhile.values(), default=0) <= 1


@given(histories)
def test_owners_who_wait_get_the_same_seconds_to_within_a_run_of_each_whatever_was_before(
    arrivals: list[Arrival],
) -> None:
    """Theorem 1 of Goyal et al., for one worker: |W_a - W_b| <= l_a + l_b over any stretch in which
    both have something waiting.
    """
    starts = Machine(1).run(arrivals)
    longest = {
        owner: max((run.seconds for run in arrivals if run.owner == owner), default=0) for owner in OWNERS
    }
    for one, other in combinations(OWNERS, 2):
        had, differences = Counter[str](), [0]
        for start in starts:
            if not {one, other} <= {run.owner for run in start.waiting}:
                had, differences = Counter(), [0]
                continue
            had[start.run.owner] += start.run.seconds
            differences.append(had[one] - had[other])
            # Between any two moments of the stretch.
            assert max(differences) - min(differences) <= longest[one] + longest[other]


@pytest.mark.parametrize("queues", [["cpu", "gpu"], ["gpu", "cpu"]])
def test_a_worker_takes_from_the_first_of_its_queues_in_which_runs_of_the_highest_priority_wait(
    queues: list[str],
) -> None:
    flows = [
        RunCandidate(OwnerQueue(queue, owner), "", priority, EPOCH, queue + owner)
        for queue, priority in (("cpu", 5), ("gpu", 5), ("low", 4))
        for owner in ("a", "b")
    ]
    choice = choose_candidate(flows, FairShareState(["low", *queues]))
    assert choice is not None
    assert choice.flow.place.queue == queues[0]


def test_owners_share_each_queue_by_itself() -> None:
    elsewhere = FairShareState(
        ["cpu", "gpu"], {OwnerQueue("gpu", "a"): OwnerUsage(9_000.0)}, serving={OwnerQueue("gpu", "a"): 8}
    )
    flows = [RunCandidate(OwnerQueue("cpu", owner), "", 5, EPOCH, owner) for owner in ("a", "b")]
    choice = choose_candidate(flows, elsewhere)
    assert choice is not None
    assert choice.flow.place.owner == "a"
