"""`/compare`: arms of any experiments side by side."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api.access.auth import Reader
from api.dependencies import NO_NUL, Store
from api.results.candidates import gather
from api.web import curves
from api.web.rendering import page
from fedcore.platform.store import experiments
from fedcore.platform.store.experiments import Filter

OFFERED = 50
"""Experiments to choose from: the newest."""

router = APIRouter(include_in_schema=False)

Wanted = Annotated[list[Annotated[str, Query(max_length=300, pattern=NO_NUL)]], Query(alias="arm", max_length=100, default_factory=list)]


@router.get("/compare")
def read_compare(request: Request, principal: Reader, database: Store, wanted: Wanted) -> Response:
    """Curves and results of the arms that the address names, and what else could be taken in."""
    with database.reading() as session:
        chosen = gather(session, principal, wanted)
        offered = experiments.page(session, Filter(principal.sees), limit=OFFERED).items
        specifications = {one.experiment.id: one.experiment.spec for one in chosen}
    arms = [(f"{one.experiment.id}:{one.arm}", one.experiment.name, one.name, one.experiment.id) for one in chosen]
    query = urlencode([("arm", entry) for entry in wanted])
    return page(
        request,
        "compare.html",
        members=arms,
        offered=[(item.id, item.name) for item in offered if item.id not in wanted],
        results=f"/v1/compare?{query}",
        figure=f"/v1/compare/figure.svg?{query}",
        theory=None,
        **curves.told(specifications.values(), len(chosen)),
    )
