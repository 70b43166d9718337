"""`fedq search`: promoted and stopped arms of a search."""

from math import nan

from rich.console import Group, RenderableType
from rich.text import Text

from fedcore.simulation.halving import HalvingSchedule, RungResult, replay
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, ExperimentId, show
from fedq.cli.views import table
from fedq.schemas import SearchPage


def search(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Show which arms a search promoted and stopped at each rung, and verify the decisions from the
    recorded results.
    """
    with connect() as client:
        show(client.search(experiment), view, as_json=as_json)


def view(item: SearchPage) -> RenderableType:
    """Table of the arms at each rung, best first."""
    rungs = ", ".join(map(str, item.rungs))
    head = (
        f"{item.kind}: {item.arms} arms, one in {item.eta} is promoted at rounds {rungs}, up to round"
        f" {item.rounds}"
    )
    known = sorted(item.items, key=lambda one: (one.rung, one.verdict is None, one.rank or 0, one.sequence))
    rows = [
        (
            one.name,
            one.round,
            None if one.value is None else f"{one.value:.6g}",
            None if one.rank is None else f"{one.rank} of {one.field}",
            one.places,
            one.verdict,
        )
        for one in known
    ]
    verified = (
        "verified: the recorded results lead to the same decisions"
        if repeats(item)
        else "NOT verified: the recorded results lead to other decisions"
    )
    return Group(
        Text(head), table(("arm", "round", item.metric, "rank", "places", "verdict"), rows), Text(verified)
    )


def repeats(item: SearchPage) -> bool:
    """True if replaying the results in their order leads to the recorded decisions."""
    ladder = HalvingSchedule(item.arms, tuple(item.rungs), item.eta, item.mode == "max", item.kind == "asha")
    arrivals = [RungResult(one.arm, one.rung, nan if one.value is None else one.value) for one in item.items]
    told = {(found.arm, found.rung): found for decisions in replay(ladder, arrivals) for found in decisions}
    recorded = {
        (one.arm, one.rung): (one.verdict, one.rank, one.field, one.places)
        for one in item.items
        if one.verdict is not None
    }
    return {
        place: (found.verdict, found.rank, found.field, found.places) for place, found in told.items()
    } == recorded
