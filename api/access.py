"""Access of other users to experiments and uploads: answers and changes of the endpoints `.../access` of
each resource.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from api.http.documents import Parsed, body_of, validate
from api.http.problems import InvalidDocumentError, describe_errors
from fedcore.platform.store import Session, audit, sharing
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.sharing import Access, Owned
from fedcore.platform.store.tables import ExperimentRecord
from fedq.schemas import AccessEdit, Flaw, SharedAccess

READ_ACCESS: Mapping[str, Any] = {"responses": describe_errors(404, 422), "summary": "Read who has access"}
EDIT_ACCESS: Mapping[str, Any] = {
    "responses": describe_errors(400, 404, 413, 415, 422),
    "openapi_extra": body_of("AccessEdit"),
    "summary": "Share with other users",
}
"""Descriptions of the two endpoints, the same of each resource."""


def access_answer(session: Session, record: Owned) -> SharedAccess:
    """Return the owner of a resource and the users with whom it is shared."""
    named: dict[Access, list[str]] = {access: [] for access in Access}
    for name, access in sharing.shares(session, record.id).items():
        named[access].append(name)
    return SharedAccess(owner=record.owner, read=named[Access.READ], write=named[Access.WRITE])


def change_access(
    session: Session, record: Owned, owner: str | None, document: Parsed, facts: AuditFacts, name: str
) -> SharedAccess:
    """Share a resource of `owner`, None: of anyone, for an administrator, as `document` says, with an
    audit entry; `name` is the id or digest that users know it by.

    Raises ForbiddenError for a resource of another owner, and InvalidDocumentError, which names each
    user who does not exist.
    """
    changes = validate(AccessEdit, document.value)
    sharing.require_owner(record, owner, name)
    flaws = list(_flaws(session, record, changes))
    if flaws:
        raise InvalidDocumentError(flaws)
    sharing.share(session, record, read=changes.read, write=changes.write)
    audit.record(session, facts, name)
    return access_answer(session, record)


def _flaws(session: Session, record: Owned, changes: AccessEdit) -> Iterator[Flaw]:
    if changes.write and not isinstance(record, ExperimentRecord):
        yield Flaw(pointer="/write", detail="uploads cannot be changed; share them by `read`")
        return
    given = {"read": changes.read or [], "write": changes.write or []}
    unknown = sharing.unknown_users(session, record.id, [name for names in given.values() for name in names])
    for field, names in given.items():
        for place, name in enumerate(names):
            if name == record.owner:
                yield Flaw(pointer=f"/{field}/{place}", detail=f"{name!r} is the owner")
            elif name in unknown:
                yield Flaw(
                    pointer=f"/{field}/{place}",
                    detail=(
                        f"there is no user {name!r}: users are the owners of valid API keys, which an"
                        " administrator creates"
                    ),
                )
