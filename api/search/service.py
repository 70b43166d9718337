"""Searches over arms and their arrivals at rungs, as answered."""

from collections.abc import Sequence
from math import nan

from fedcore.platform.store import Session, experiments, search
from fedcore.platform.store.tables import ArrivalRecord, SearchRecord
from fedcore.simulation.study import pareto_front
from fedcore.spec.search import FurtherMetric
from fedq.schemas import ArmArrival, MetricDirection, SearchPage

ARRIVALS = 10_000
"""Maximum number of arrivals per page."""


def search_answer(
    session: Session, record: SearchRecord, after: int = 0, limit: int = ARRIVALS
) -> SearchPage:
    """Return a search with at most `limit` arrivals after the sequence `after`."""
    items = arrival_answers(session, record, search.arrivals(session, record.experiment_id, after, limit))
    spec = experiments.find(session, record.experiment_id).spec["search"]
    further = [FurtherMetric.model_validate(one) for one in spec.get("further_metrics", ())]
    return SearchPage(
        experiment_id=record.experiment_id,
        kind=record.kind,
        metric=record.metric,
        mode="max" if record.maximise else "min",
        eta=record.eta or None,
        arms=record.arms,
        further_metrics=[
            MetricDirection(metric=one.metric, mode="max" if one.maximise else "min") for one in further
        ],
        pareto_front=_pareto_front(session, record, further) if further else None,
        pruner=(spec.get("pruner") or {}).get("kind"),
        rungs=record.rungs,
        rounds=record.rounds,
        items=items,
        next=items[-1].sequence if items else after,
    )


def _pareto_front(session: Session, record: SearchRecord, further: Sequence[FurtherMetric]) -> list[int]:
    ended = search.arrivals(session, record.experiment_id)
    values = [(one.value, *(one.further_values or ())) for one in ended]
    front = pareto_front(
        [[nan if value is None else value for value in point] for point in values],
        [record.maximise, *(one.maximise for one in further)],
    )
    return sorted(ended[place].arm for place in front)


def arrival_answers(
    session: Session, search_of: SearchRecord, arrivals: Sequence[ArrivalRecord]
) -> list[ArmArrival]:
    """Return arrivals at rungs of this search."""
    names = search.names(session, search_of.experiment_id, [arrival.arm for arrival in arrivals])
    return [
        ArmArrival(
            sequence=arrival.sequence,
            arm=arrival.arm,
            name=names[arrival.arm],
            rung=arrival.rung,
            round=search_of.rungs[arrival.rung],
            value=arrival.value,
            further_values=arrival.further_values or [],
            arrived_at=arrival.arrived_at,
            verdict=arrival.verdict,
            rank=arrival.rank,
            field=arrival.field,
            places=arrival.places,
            decided_by=arrival.decided_by,
            decided_at=arrival.decided_at,
        )
        for arrival in arrivals
    ]
