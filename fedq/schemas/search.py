"""What is decided about the arms of a sweep, and what it was decided on."""

from datetime import datetime
from typing import Literal

from fedcore.simulation.halving import Verdict
from fedcore.spec.search import Mode
from fedq.schemas.base import Schema


class ArmArrival(Schema):
    """An arm that has come to a rung with all of its runs, and what became of it there.

    It was compared with the arms of the same rung whose `sequence` is at most `decided_by`.
    """

    sequence: int
    """Its place in the order in which arms came to rungs, from 1."""
    arm: int
    """Index of the arm."""
    name: str
    """What sets the arm apart."""
    rung: int
    """Which rung, from 0."""
    round: int
    """The rung's round."""
    value: float | None
    """Mean of the metric over the arm's seeds; null, which is worst, where one of them failed, diverged or has none."""
    arrived_at: datetime
    """When the last of its runs came."""
    verdict: Verdict | None
    """What became of it: `promoted` to the next rung (from the last one to the last round), or `stopped`; null while that is not
    decided."""
    rank: int | None
    """Its rank among those it was compared with, from 1."""
    field: int | None
    """How many those were, itself included."""
    places: int | None
    """How many of them, the best, could go on."""
    decided_by: int | None
    """The arrival, by its `sequence`, that brought the decision."""
    decided_at: datetime | None
    """When it was decided."""


class SearchPage(Schema):
    """The search of an experiment, and a page of what has come of it."""

    experiment_id: str
    """The experiment."""
    kind: Literal["asha", "successive_halving"]
    """How arms are promoted."""
    metric: str
    """What they are judged by."""
    mode: Mode
    """Whether less or more of it is better."""
    eta: int
    """One of so many arms goes on from each rung."""
    arms: int
    """Arms of the sweep."""
    rungs: list[int]
    """The rounds of the rungs."""
    rounds: int
    """The most rounds of an arm."""
    items: list[ArmArrival]
    """In order of `sequence`."""
    next: int
    """Pass this as `after` to go on: the last sequence of this page, or `after` where the page is empty. An arrival that was not
    decided may be later: ask for it again."""
