"""`/v1/audit`: the audit log."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.http.authentication import Administrator
from api.http.dependencies import Cursor, DatabaseDep, OwnerFilter, TargetFilter
from api.http.parameters import NextLink
from api.http.problems import describe_errors
from fedcore.platform.store import audit
from fedq.schemas import AuditEntry, Page

router = APIRouter(prefix="/v1/audit", tags=["access"])

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of entries per page.")]


@router.get("", responses=describe_errors(422), summary="Read the audit log")
def read_audit(
    _principal: Administrator,
    database: DatabaseDep,
    link: NextLink,
    owner: OwnerFilter = None,
    target: TargetFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditEntry]:
    """Return all changes and refused attempts, newest first."""
    with database.reading() as session:
        page = audit.page(session, owner=owner, target=target, limit=limit, cursor=cursor)
    return Page[AuditEntry](
        items=[AuditEntry.model_validate(record) for record in page.items], next=link(page.next)
    )
