"""Decisions of a search about the arms of a sweep."""

from datetime import datetime
from typing import Literal

from fedcore.simulation.halving import Verdict
from fedcore.spec.search import Mode
from fedq.schemas.base import Schema


class ArmArrival(Schema):
    """An arm that has reached a rung with all of its runs, and the decision about it.

    It was compared with the arms of the same rung whose `sequence` is at most `decided_by`.
    """

    sequence: int
    """Position in the order in which arms reached rungs, from 1."""
    arm: int
    """Index of the arm."""
    name: str
    """Name of the arm."""
    rung: int
    """Index of the rung, from 0."""
    round: int
    """Round of the rung."""
    value: float | None
    """Mean of the metric over the seeds; null, which ranks last, if a run failed, diverged or has
    no value.
    """
    arrived_at: datetime
    """Time at which the last run of the arm reached the rung."""
    verdict: Verdict | None
    """Decision: `promoted` to the next rung (from the last rung to the last round) or `stopped`;
    null while undecided.
    """
    rank: int | None
    """Rank among the compared arms, from 1."""
    field: int | None
    """Number of compared arms, including this one."""
    places: int | None
    """Number of arms that could be promoted."""
    decided_by: int | None
    """`sequence` of the arrival that led to the decision."""
    decided_at: datetime | None
    """Time of the decision."""


class SearchPage(Schema):
    """The search of an experiment, with a page of arrivals."""

    experiment_id: str
    """The experiment."""
    kind: Literal["asha", "successive_halving"]
    """Kind of the search."""
    metric: str
    """Metric that ranks the arms."""
    mode: Mode
    """Direction of the metric: `min` or `max`."""
    eta: int
    """One in `eta` arms is promoted from each rung."""
    arms: int
    """Number of arms of the sweep."""
    rungs: list[int]
    """Rounds of the rungs."""
    rounds: int
    """Maximum rounds of an arm."""
    items: list[ArmArrival]
    """Arrivals in order of `sequence`."""
    next: int
    """Value of `after` for the next page: the last sequence of this page, or `after` if the page is
    empty. Undecided arrivals may be decided later: request them again.
    """
