"""`fedq search`: which arms were promoted and stopped."""

from math import nan

from rich.console import Group, RenderableType
from rich.text import Text

from api.cli.connection import connect
from api.cli.terminal import AsJson, ExperimentId, show
from api.cli.views import table
from api.schemas import SearchPage
from fedcore.halving import Arrival, Ladder, replay


def search(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Show which arms a search has promoted and stopped, rung by rung, and that the same follows again from the record."""
    with connect() as client:
        show(client.search(experiment), view, as_json=as_json)


def view(item: SearchPage) -> RenderableType:
    """The arms at each rung, the best first."""
    rungs = ", ".join(map(str, item.rungs))
    head = f"{item.kind}: {item.arms} arms, one in {item.eta} goes on from the rungs at rounds {rungs}, at most to round {item.rounds}"
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
    verified = "played again from the record, it is decided the same" if repeats(item) else "NOT what follows from the record"
    return Group(Text(head), table(("arm", "round", item.metric, "rank", "places", "verdict"), rows), Text(verified))


def repeats(item: SearchPage) -> bool:
    """Whether the decisions follow from the order of the arrivals and their values."""
    ladder = Ladder(item.arms, tuple(item.rungs), item.eta, item.mode == "max", item.kind == "asha")
    arrivals = [Arrival(one.arm, one.rung, nan if one.value is None else one.value) for one in item.items]
    told = {(found.arm, found.rung): found for decisions in replay(ladder, arrivals) for found in decisions}
    recorded = {(one.arm, one.rung): (one.verdict, one.rank, one.field, one.places) for one in item.items if one.verdict is not None}
    return {place: (found.verdict, found.rank, found.field, found.places) for place, found in told.items()} == recorded
