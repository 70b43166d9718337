"""`/`: the experiments."""

from fastapi import APIRouter, Request, Response

from api.answers import summary_answer
from api.auth import Reader
from api.dependencies import Cursor, Store
from api.web.rendering import page
from fedcore.store import experiments, progress
from fedcore.store.experiments import Filter

PAGE = 50

router = APIRouter(include_in_schema=False)


@router.get("/")
def read_list(request: Request, principal: Reader, database: Store, cursor: Cursor = None) -> Response:
    """Newest first, a page at a time; of all owners for administrators."""
    with database.reading() as session:
        found = experiments.page(session, Filter(principal.sees), limit=PAGE, cursor=cursor)
        progresses = progress.progress_of(session, [record.id for record in found.items])
    items = [summary_answer(record, progresses[record.id]) for record in found.items]
    return page(request, "list.html", items=items, next=found.next)
