"""`/v1/keys` and `/v1/me`: administrators create, list, edit and revoke keys; anyone reads their
own.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator

from api.http.audit_trail import Audit
from api.http.authentication import Administrator, Reader
from api.http.conditional import IfMatch, check_match
from api.http.dependencies import AppStateDep, Cursor, DatabaseDep, printable
from api.http.documents import Document, body_of, validate
from api.http.parameters import NextLink
from api.http.problems import describe_errors
from fedcore.platform.store import Session, audit, keys, quotas
from fedcore.platform.store.tables import KeyRecord
from fedq.schemas import Key, KeyEdit, KeyRequest, KeyStanding, KeyUsage, NewKey, Page

router = APIRouter(prefix="/v1", tags=["access"])

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of keys per page.")]
KeyId = Annotated[
    str, Path(description="Key id.", examples=["key_01k9x3zq7rh2v8m4t6w0ybe5k1"]), AfterValidator(printable)
]


@router.post(
    "/keys",
    status_code=201,
    responses=describe_errors(400, 413, 415, 422),
    openapi_extra=body_of("KeyRequest"),
    summary="Create a key",
)
def create_key(_principal: Administrator, document: Document, database: DatabaseDep, facts: Audit) -> NewKey:
    """Create a key for a new or existing owner.

    The response contains the key itself, which is not stored or shown again.
    """
    wanted = validate(KeyRequest, document.value)
    with database.transaction() as session:
        record, token = keys.create(session, **wanted.model_dump())
        audit.record(session, facts, record.id)
    return NewKey(**Key.model_validate(record).model_dump(), key=token.text)


@router.get("/keys", responses=describe_errors(422), summary="List keys")
def read_keys(
    _principal: Administrator, database: DatabaseDep, link: NextLink, limit: Limit = 50, cursor: Cursor = None
) -> Page[Key]:
    """Return keys, including revoked ones, newest first."""
    with database.reading() as session:
        page = keys.page(session, limit=limit, cursor=cursor)
    return Page[Key](items=[Key.model_validate(record) for record in page.items], next=link(page.next))


@router.get("/keys/{key_id}", responses=describe_errors(404, 422), summary="Read a key")
def read_key(_principal: Administrator, key_id: KeyId, database: DatabaseDep) -> KeyStanding:
    """Return a key and its use of quotas. `/v1/me` returns the caller's own key."""
    with database.reading() as session:
        return _standing(session, keys.find(session, key_id))


@router.patch(
    "/keys/{key_id}",
    responses=describe_errors(400, 404, 409, 412, 413, 415, 422),
    openapi_extra=body_of("KeyEdit"),
    summary="Edit a key",
)
def edit_key(
    _principal: Administrator,
    key_id: KeyId,
    document: Document,
    state: AppStateDep,
    facts: Audit,
    if_match: IfMatch = None,
) -> Key:
    """Change the given fields of a key, effective within two seconds.

    Lower quotas do not affect existing resources.
    """
    changes = validate(KeyEdit, document.value)
    with state.database.transaction() as session:
        if if_match is not None:
            record = keys.find(session, key_id)
            session.refresh(record, with_for_update=True)
            check_match(if_match, _standing(session, record))
        record = keys.edit(
            session, key_id, {name: getattr(changes, name) for name in changes.model_fields_set}
        )
        audit.record(session, facts, key_id)
    state.authenticator.forget()
    return Key.model_validate(record)


@router.post("/keys/{key_id}/revoke", responses=describe_errors(404, 422), summary="Revoke a key")
def revoke_key(_principal: Administrator, key_id: KeyId, state: AppStateDep, facts: Audit) -> Key:
    """Revoke a key, effective within two seconds. Everything created with it is kept.
    Idempotent.
    """
    with state.database.transaction() as session:
        record = keys.revoke(session, key_id)
        audit.record(session, facts, key_id)
    state.authenticator.forget()
    return Key.model_validate(record)


@router.get("/me", summary="Read the caller's key")
def read_me(principal: Reader, database: DatabaseDep) -> KeyStanding:
    """Return the key of the request with its scope and its use of quotas."""
    with database.reading() as session:
        return _standing(session, keys.find(session, principal.key_id))


def _standing(session: Session, record: KeyRecord) -> KeyStanding:
    return KeyStanding(
        key=Key.model_validate(record), usage=KeyUsage.model_validate(quotas.usage(session, record))
    )
