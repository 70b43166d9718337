"""Both kinds of successive halving against the pseudo-code of the papers, and what holds in any
order of arrivals.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.simulation import halving
from fedcore.simulation.halving import HalvingSchedule, RungResult, RungTable, Verdict, replay
from fedcore.spec.search import rungs

NAN = math.nan


class Case(NamedTuple):
    """n arms with n >= eta^K, and what decides how they do and when they come."""

    arms: int
    eta: int
    rungs: int
    seed: int


cases = st.tuples(st.integers(2, 4), st.integers(1, 3)).flatmap(
    lambda sizes: st.builds(
        Case,
        st.integers(sizes[0] ** sizes[1], 12 + sizes[0] ** sizes[1]),
        st.just(sizes[0]),
        st.just(sizes[1]),
        st.integers(0, 2**32),
    )
)


def ladder(case: Case, *, asynchronous: bool) -> HalvingSchedule:
    return HalvingSchedule(
        case.arms,
        tuple(case.eta**rung for rung in range(case.rungs)),
        case.eta,
        maximise=False,
        asynchronous=asynchronous,
    )


def losses_of(case: Case) -> list[list[float]]:
    """By arm and rung; ties and failures among them."""
    draw = Random(case.seed)
    return [
        [draw.choice([NAN, *map(float, range(-5, 6))]) for _ in range(case.rungs)] for _ in range(case.arms)
    ]


def play(
    board: RungTable, case: Case, losses: Sequence[Sequence[float]], order: int = 0
) -> tuple[dict[int, int], list[RungResult]]:
    """Arms reach their rungs in an order that `order` makes another.

    How many rungs each was promoted from, and the order.
    """
    draw = Random(case.seed + order)
    under_way, promoted, arrived = (
        [(arm, 0) for arm in range(case.arms)],
        dict.fromkeys(range(case.arms), 0),
        [],
    )
    while under_way:
        arm, rung = under_way.pop(draw.randrange(len(under_way)))
        arrived.append(RungResult(arm, rung, losses[arm][rung]))
        for decision in board.submit(arrived[-1]):
            if decision.verdict is Verdict.PROMOTED:
                promoted[decision.arm] += 1
                if decision.rung + 1 < case.rungs:
                    under_way.append((decision.arm, decision.rung + 1))
    return promoted, arrived


def successive_halving(n: int, eta: int, s_max: int, losses: Sequence[Sequence[float]]) -> dict[int, int]:
    """Li et al. 2020, Algorithm 1, with all values finite.

    n_i = floor(n eta^-i), T <- top_k(T, L, n_i / eta).
    """
    survivors, promoted = list(range(n)), dict.fromkeys(range(n), 0)
    for i in range(s_max):
        n_i = math.floor(n * eta**-i + 1e-9)
        ranked = sorted(survivors, key=lambda arm: (losses[arm][i], arm))
        survivors = ranked[: math.floor(n_i / eta + 1e-9)]
        for arm in survivors:
            promoted[arm] += 1
    return promoted


class GetJob:
    """Li et al. 2020, Algorithm 2, get_job with r = 1, s = 0: what is promoted next, from the top
    rung down.
    """

    def __init__(self, eta: int, rungs: int) -> None:
        self.eta, self.rungs = eta, rungs
        self.results: list[dict[int, float]] = [{} for _ in range(rungs)]
        self.promoted: list[set[int]] = [set() for _ in range(rungs)]

    def report(self, arrival: RungResult) -> set[tuple[int, int]]:
        """Record a result, and call get_job until it would grow the bottom rung.

        What it promoted, as (arm, rung).
        """
        self.results[arrival.rung][arrival.arm] = arrival.value
        found = set()
        while job := self._promotable():
            self.promoted[job[1]].add(job[0])
            found.add(job)
        return found

    def _promotable(self) -> tuple[int, int] | None:
        for k in reversed(range(self.rungs)):
            finite = {arm: value for arm, value in self.results[k].items() if math.isfinite(value)}
            ranked = sorted(finite, key=lambda arm: (finite[arm], arm))
            for arm in ranked[: len(self.results[k]) // self.eta]:
                if arm not in self.promoted[k]:
                    return arm, k
        return None


@pytest.mark.parametrize(
    ("r", "eta", "rounds", "expected"),
    [
        (1, 3, 9, (1, 3)),
        (1, 3, 8, (1,)),
        (1, 3, 26, (1, 3)),
        (4, 4, 256, (4, 16, 64)),
        (5, 2, 9, ()),
        (5, 2, 10, (5,)),
    ],
)
def test_rungs_are_the_powers_of_eta_that_leave_room_for_one_more(
    r: int, eta: int, rounds: int, expected: tuple[int, ...]
) -> None:
    assert rungs(r, eta, rounds) == expected
    assert len(expected) == max(0, math.floor(math.log(rounds / r) / math.log(eta) + 1e-9))


def test_stretches_are_those_of_the_papers_table() -> None:
    # Li et al. 2020, Figure 1, bracket s = 0: n = 9, eta = 3, r = 1, R = 9.
    assert halving.plan_stages(HalvingSchedule(9, (1, 3), 3, maximise=False, asynchronous=False), 9) == [
        (1, 9),
        (3, 3),
        (9, 1),
    ]


@given(cases)
def test_the_synchronous_kind_is_algorithm_1_in_any_order_of_arrivals(case: Case) -> None:
    losses = [[value if math.isfinite(value) else 9.0 for value in of_arm] for of_arm in losses_of(case)]
    promoted, _ = play(RungTable(ladder(case, asynchronous=False)), case, losses)
    assert promoted == successive_halving(case.arms, case.eta, case.rungs, losses)


@given(cases)
def test_with_failures_the_synchronous_outcome_depends_on_no_order_either(case: Case) -> None:
    once, again = (
        play(RungTable(ladder(case, asynchronous=False)), case, losses_of(case), order)[0] for order in (0, 1)
    )
    assert once == again


@given(cases)
def test_the_asynchronous_kind_promotes_what_algorithm_2_does_arrival_by_arrival(case: Case) -> None:
    on = ladder(case, asynchronous=True)
    _, arrived = play(RungTable(on), case, losses_of(case))
    paper, ended = GetJob(case.eta, case.rungs), False
    for arrival, decisions in zip(arrived, replay(on, arrived), strict=True):
        # Once a rung is closed, finitely many arms are judged for the last time, which the paper's
        # endless supply of them never is.
        ended |= any(decision.verdict is Verdict.STOPPED for decision in decisions)
        expected = paper.report(arrival)
        if not ended:
            assert {(decision.arm, decision.rung) for decision in decisions} == expected


@given(cases, st.booleans())
def test_halving_is_consistent_in_any_order_of_results(case: Case, asynchronous: bool) -> None:
    on = ladder(case, asynchronous=asynchronous)
    promoted, arrived = play(RungTable(on), case, losses_of(case))
    told = [decision for decisions in replay(on, arrived) for decision in decisions]
    # Every arrival is decided, once.
    assert sorted((decision.arm, decision.rung) for decision in told) == sorted(
        (arrival.arm, arrival.rung) for arrival in arrived
    )
    assert all(decision.rank <= decision.field for decision in told)
    promotions = [decision for decision in told if decision.verdict is Verdict.PROMOTED]
    assert all(decision.places is not None and decision.rank <= decision.places for decision in promotions)
    for rung in range(case.rungs):
        there = [arrival for arrival in arrived if arrival.rung == rung]
        going = {arm for arm, count in promoted.items() if count > rung}
        finite = [
            arm
            for _, arm in sorted(
                (arrival.value, arrival.arm) for arrival in there if math.isfinite(arrival.value)
            )
        ]
        kept = case.arms // case.eta ** (rung + 1)
        # The best floor(n / eta^(k + 1)) of a rung go on, as far as there are so many with a value.
        assert set(finite[:kept]) <= going <= set(finite)
        if asynchronous:
            # Others only if they were among the best when they came: an arrival promotes one at
            # most, the first eta - 1 none.
            assert len(going) <= max(kept, len(there) - case.eta + 1)
        else:
            assert len(going) == min(kept, len(finite))


@given(cases, st.booleans(), st.integers(0, 60))
def test_a_board_taken_over_from_the_record_goes_on_as_it_would_have(
    case: Case, asynchronous: bool, cut: int
) -> None:
    on = ladder(case, asynchronous=asynchronous)
    _, arrived = play(RungTable(on), case, losses_of(case))
    told = replay(on, arrived)
    verdicts = {
        (decision.arm, decision.rung): decision.verdict for decisions in told[:cut] for decision in decisions
    }
    board = RungTable(on)
    for arrival in arrived[:cut]:
        board.record(arrival, verdicts.get((arrival.arm, arrival.rung)))
    assert [board.submit(arrival) for arrival in arrived[cut:]] == told[cut:]


def test_more_may_be_better() -> None:
    on = HalvingSchedule(2, (1,), 2, maximise=True, asynchronous=False)
    assert [decision.arm for decision in replay(on, [RungResult(0, 0, 0.5), RungResult(1, 0, 0.9)])[-1]] == [
        1,
        0,
    ]
