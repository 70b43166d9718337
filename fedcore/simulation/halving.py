"""Successive halving over the arms of a sweep: who goes on from a rung, decided on what has arrived
there. Standard library only.

    SHA   Jamieson and Talwalkar 2016; Li et al. 2020, Algorithm 1
    ASHA  Li et al. 2020, Algorithm 2

With n arms and rungs r_k = r eta^k, k = 0 ... K - 1, r_K = R, K = floor(log_eta(R / r)):

    SHA   when all arms of rung k are there: promote the best floor(n / eta^(k + 1)), stop the others
    ASHA  after every arrival: promote those among the best floor(|rung k| / eta) not promoted yet

Departures: r_K is R also where R is no power of eta times r. An arm without a finite value (failed,
diverged) is the worst and is never promoted, whatever others are like. ASHA's arms are finitely
many, so once no more can come to a rung, arms that are not promoted stop; where fewer came than SHA
would have sent, for others had no value, as many go on as in SHA. Ties go to the lower arm.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Self

from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    from fedcore.spec import search as searches
    from fedcore.spec.search import Halving
else:
    # The schemas of the service's responses use `Verdict`, without specifications.
    searches = LazyModule("fedcore.spec.search")


class Verdict(StrEnum):
    """The decision about an arm at a rung."""

    PROMOTED = "promoted"
    """It goes on to the next rung, from the last one to its last round."""
    STOPPED = "stopped"
    """It ends here."""


class RungResult(NamedTuple):
    """Arrival of an arm at a rung: each of its runs has reached it, or ended before it."""

    arm: int
    rung: int
    """k, counted from 0."""
    value: float
    """Mean of the metric over the arm's seeds; NaN where one of them has none."""
    further: tuple[float, ...] = ()
    """Values of the further metrics of a study."""


def ranking_key(value: float, arm: int, *, maximise: bool) -> tuple[bool, float, int]:
    """Sorts arms at a rung, the best first: those without a finite value last, ties by arm."""
    if not isfinite(value):
        return True, 0.0, arm
    return False, -value if maximise else value, arm


class Decision(NamedTuple):
    """A verdict, and its grounds."""

    arm: int
    rung: int
    verdict: Verdict
    rank: int
    """Rank of the arm among the arms at its rung, from 1."""
    field: int
    """Arms at the rung."""
    places: int | None
    """How many of the best could be promoted; None where that depends on their values."""


@dataclass(frozen=True, slots=True)
class HalvingSchedule:
    """The rungs of a search, fixed before anything has arrived."""

    arms: int
    """n."""
    rungs: tuple[int, ...]
    """r_0 ... r_(K - 1), in rounds."""
    eta: int
    maximise: bool
    asynchronous: bool

    @classmethod
    def of(cls, search: Halving, arms: int, rounds: int) -> Self:
        """Return the schedule of this many arms with R = `rounds`."""
        return cls(
            arms,
            searches.rungs(search.min_rounds, search.eta, rounds),
            search.eta,
            search.maximise,
            isinstance(search, searches.Asha),
        )

    def survivors(self, rung: int) -> int:
        """Arms that SHA promotes from a rung: floor(n / eta^(k + 1))."""
        return int(self.arms // self.eta ** (rung + 1))


class RungTable:
    """The arms that have arrived at each rung, and the decisions made. Changes in place."""

    def __init__(self, schedule: HalvingSchedule) -> None:
        self._ladder = schedule
        self._ranking: list[list[tuple[bool, float, int]]] = [[] for _ in schedule.rungs]
        """Arms at each rung, the best first."""
        self._verdicts: list[dict[int, Verdict]] = [{} for _ in schedule.rungs]

    def record(self, arrival: RungResult, verdict: Verdict | None) -> None:
        """Restore decisions recorded before."""
        insort(
            self._ranking[arrival.rung],
            ranking_key(arrival.value, arrival.arm, maximise=self._ladder.maximise),
        )
        if verdict is not None:
            self._verdicts[arrival.rung][arrival.arm] = verdict

    def submit(self, arrival: RungResult) -> list[Decision]:
        """Record that an arm has come to a rung; returns the decisions that follow, by rung and
        rank.

        It comes to each rung once.
        """
        self.record(arrival, None)
        return list(self._due())

    def _due(self) -> Iterator[Decision]:
        expected: int | None = self._ladder.arms
        for rung, (ranking, verdicts) in enumerate(zip(self._ranking, self._verdicts, strict=True)):
            closed = len(ranking) == expected
            if len(verdicts) < len(ranking):
                yield from self._judge(rung, closed=closed)
            # As long as arms may come to this rung, they may also come to the next.
            expected = sum(verdict is Verdict.PROMOTED for verdict in verdicts.values()) if closed else None

    def _judge(self, rung: int, *, closed: bool) -> Iterator[Decision]:
        ranking, verdicts, places = (
            self._ranking[rung],
            self._verdicts[rung],
            self._places(rung, closed=closed),
        )
        for rank, (worst, _, arm) in enumerate(ranking if closed else ranking[:places], 1):
            if arm not in verdicts and (closed or not worst):
                verdicts[arm] = Verdict.PROMOTED if rank <= places and not worst else Verdict.STOPPED
                yield Decision(arm, rung, verdicts[arm], rank, len(ranking), places)

    def _places(self, rung: int, *, closed: bool) -> int:
        now = len(self._ranking[rung]) // self._ladder.eta if self._ladder.asynchronous else 0
        return max(now, self._ladder.survivors(rung)) if closed else now


def replay(schedule: HalvingSchedule, arrivals: Iterable[RungResult]) -> list[list[Decision]]:
    """Return the decisions that follow from arrivals in this order, arrival by arrival."""
    board = RungTable(schedule)
    return [board.submit(arrival) for arrival in arrivals]


def plan_stages(schedule: HalvingSchedule, rounds: int) -> list[tuple[int, int]]:
    """The stages of a search in which no more arms are promoted than by SHA: the round each ends
    at, and the number of arms that play it.
    """
    ends: Sequence[int] = (*schedule.rungs, rounds)
    return [
        (end, schedule.arms if rung == 0 else schedule.survivors(rung - 1)) for rung, end in enumerate(ends)
    ]
