"""`/v1/keys` and `/v1/me`: API keys, made, listed, changed and revoked by administrators; and whoever asks."""

from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import AfterValidator

from api.http.audit_trail import Note
from api.http.authentication import Administrator, Reader, authenticator_of
from api.http.dependencies import Cursor, Store, printable
from api.http.documents import Document, body_of, validate
from api.http.problems import responses
from api.http.routing import Router
from api.keys.responses import key_answer
from fedcore.platform.store import keys, quotas
from fedcore.platform.store.quotas import Quota
from fedq.schemas import Key, KeyEdit, KeyPage, KeyRequest, KeyStanding, KeyUsage, Me, NewKey

router = Router(prefix="/v1", tags=["access"])

Limit = Annotated[int, Query(ge=1, le=200, description="Keys on a page, at most.")]
KeyId = Annotated[str, Path(description="The key's id.", examples=["key_01k9x3zq7rh2v8m4t6w0ybe5k1"]), AfterValidator(printable)]


@router.post("/keys", status_code=201, responses=responses(400, 413, 415, 422), openapi_extra=body_of("KeyRequest"), summary="Make a key")
def create(_principal: Administrator, document: Document, database: Store, note: Note) -> NewKey:
    """A key for an owner, new or known. The answer holds the key itself; it is not kept, and cannot be read again."""
    wanted = validate(KeyRequest, document.value)
    quota = Quota(wanted.max_waiting_runs, wanted.max_running_runs, wanted.max_stored_bytes, wanted.max_compute_seconds)
    with database.transaction() as session:
        record, token = keys.create(
            session, owner=wanted.owner, scope=wanted.scope, name=wanted.name, expires_at=wanted.expires_at, quota=quota
        )
        note(session, record.id)
    return NewKey(**key_answer(record).model_dump(), key=token.text)


@router.get("/keys", responses=responses(422), summary="List keys")
def read_keys(_principal: Administrator, database: Store, limit: Limit = 50, cursor: Cursor = None) -> KeyPage:
    """Newest first, a page at a time, revoked ones too."""
    with database.reading() as session:
        page = keys.page(session, limit=limit, cursor=cursor)
    return KeyPage(items=[key_answer(record) for record in page.items], next=page.next)


@router.get("/keys/{key_id}", responses=responses(404, 422), summary="Read a key")
def read_key(_principal: Administrator, key_id: KeyId, database: Store) -> KeyStanding:
    """A key, and how much of its quotas is used; of their own key, `/v1/me` tells everybody."""
    with database.reading() as session:
        record = keys.find(session, key_id)
        return KeyStanding(key=key_answer(record), usage=KeyUsage.model_validate(quotas.usage(session, record)))


@router.patch("/keys/{key_id}", responses=responses(400, 404, 409, 413, 415, 422), openapi_extra=body_of("KeyEdit"), summary="Change a key")
def edit(_principal: Administrator, key_id: KeyId, document: Document, database: Store, note: Note, request: Request) -> Key:
    """Change what is given and leave the rest, within two seconds in every process; a lower quota takes nothing away that is there."""
    changes = validate(KeyEdit, document.value)
    with database.transaction() as session:
        record = keys.edit(session, key_id, {name: getattr(changes, name) for name in changes.model_fields_set})
        note(session, key_id)
    authenticator_of(request).forget()
    return key_answer(record)


@router.post("/keys/{key_id}/revoke", responses=responses(404, 422), summary="Revoke a key")
def revoke(_principal: Administrator, key_id: KeyId, database: Store, note: Note, request: Request) -> Key:
    """End a key, within two seconds in every process; what it made stays. Safe to repeat."""
    with database.transaction() as session:
        record = keys.revoke(session, key_id)
        note(session, key_id)
    authenticator_of(request).forget()
    return key_answer(record)


@router.get("/me", summary="Who asks")
def read_me(principal: Reader, database: Store) -> Me:
    """The key that was sent, what it allows, and what was made with it."""
    with database.reading() as session:
        record = keys.find(session, principal.key_id)
        return Me(key=key_answer(record), usage=KeyUsage.model_validate(quotas.usage(session, record)))
