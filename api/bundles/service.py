"""Code bundles: received, checked in a confined process, stored, and specifications that use them.

No code of a bundle runs in this process.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from fastapi import HTTPException, Request

from api.http.authentication import Sender
from api.http.dependencies import AppState
from api.http.documents import pieces_within, validate
from api.http.problems import InvalidDocumentError
from api.stored_uploads import create_row
from fedcore import bundles
from fedcore.errors import ExtensionError, ForbiddenError, UserCodeError
from fedcore.lazy import LazyModule
from fedcore.platform import storage
from fedcore.platform.access import Principal
from fedcore.platform.store import Session, audit
from fedcore.platform.store import bundles as stored
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.quotas import check_stored
from fedcore.platform.store.tables import BundleRecord
from fedcore.spec import ExperimentSpec
from fedcore.spec.code import CodeBundle
from fedq.planning.probe import Probe
from fedq.schemas import Flaw, Plan
from workers.confined.confinement import ConfinementError

if TYPE_CHECKING:
    from workers.confined import check, probed_rounds
else:
    # Loaded with the first bundle.
    check = LazyModule("workers.confined.check")
    probed_rounds = LazyModule("workers.confined.probed_rounds")

log = structlog.stdlib.get_logger("fedq.api")

CHECK_S = 30.0
"""Most time for the checks of a bundle, of which none is started after a few seconds."""
MEDIA_TYPE = "application/octet-stream"


class Prepared(NamedTuple):
    """A specification that uses a bundle, as the confined process has validated it."""

    spec: ExperimentSpec
    """With stand-ins for the components of the bundle."""
    plan: Plan


async def receive(request: Request, _principal: Sender) -> bytes:
    """Return the body; 413 if it is larger than a bundle may be."""
    limit = bundles.MAX_ARCHIVE_BYTES
    excess = f"The bundle exceeds {limit} bytes; leave out data and results."
    return b"".join([piece async for piece in pieces_within(request, limit, excess)])


def keep(
    archive: bytes, principal: Principal, facts: AuditFacts, state: AppState
) -> tuple[BundleRecord, bool]:
    """Check a bundle and store it; also returns whether it is new.

    Raises InvalidDocumentError with the errors in its code, and QuotaError.
    """
    try:
        files = bundles.list_files(archive)
        checked = _confined(archive, "check", None, state, CHECK_S)
    except (ExtensionError, UserCodeError) as error:
        raise InvalidDocumentError.at("code", str(error)) from error
    if checked["flaws"]:
        raise InvalidDocumentError([Flaw.model_validate(flaw) for flaw in checked["flaws"]])
    digest = bundles.digest(archive)
    with state.database.reading() as session:
        bundle_id = stored.BUNDLES.new_id(session)
    key = bundles.storage_key(bundle_id, digest)
    state.storage.put(key, archive)

    def create(session: Session) -> BundleRecord:
        record = stored.BUNDLES.create(
            session,
            bundle_id,
            digest,
            files=[file._asdict() for file in files],
            components=checked["components"],
            size_bytes=len(archive),
            owner=principal.owner,
            key_id=principal.key_id,
        )
        if record.id == bundle_id:
            check_stored(session, principal.key_id)
        audit.record(session, facts, record.digest)
        return record

    return create_row(state, bundle_id, key, create)


def prepare(document: Mapping[str, Any], state: AppState, principal: Principal) -> Prepared:
    """Validate a specification with `code` in a confined process that loads its bundle.

    Raises ForbiddenError for a key without the scope `code`, and InvalidDocumentError or
    SpecificationError with the errors, those of the bundle with file and line.
    """
    if not principal.code:
        raise ForbiddenError(
            "`code` requires a key of scope `code`; create one with `fedq key create --code`"
        )
    code = validate(CodeBundle, document["code"], "/code")
    with state.database.reading() as session:
        record = stored.BUNDLES.find(session, code.digest, principal.sees)
    document = {**document, "code": code_of(record)}
    try:
        answer = _confined(archive_of(record, state), "prepare", document, state, check.CHECK_S)
    except UserCodeError as error:
        raise InvalidDocumentError.at("/code", str(error)) from error
    if answer["flaws"]:
        raise InvalidDocumentError([Flaw.model_validate(flaw) for flaw in answer["flaws"]])
    plan = Plan.model_validate(answer["plan"])
    return Prepared(validate(ExperimentSpec, plan.specification), plan)


def play_rounds(
    code: CodeBundle, specification: Mapping[str, Any], state: AppState, limit_s: float, load_s: float
) -> Probe:
    """Play rounds of a specification that `prepare` has returned, in the confinement of its bundle."""
    assert code.id is not None
    archive = storage.read(state.storage, bundles.storage_key(code.id, code.digest))
    return probed_rounds.play(archive, specification, state.settings, state.storage, limit_s, load_s)


def _confined(archive: bytes, name: str, document: Any, state: AppState, timeout_s: float) -> Any:
    """Call a function in a confined process; 501 where this process cannot start one."""
    try:
        return check.call(archive, name, document, state.settings, timeout_s)
    except ConfinementError as error:
        log.warning("no process for code bundles could be started: %s", error)
        raise HTTPException(
            501,
            "This service cannot run code bundles; its log says why, and docs/operations.md what it needs.",
        ) from error


def code_of(record: BundleRecord) -> dict[str, Any]:
    """Return the field `code` of specifications that use a bundle."""
    return {"digest": record.digest, "id": record.id, "components": record.components}


def archive_of(record: BundleRecord, state: AppState) -> bytes:
    """Return the archive of a bundle; raises ResourceNotFoundError."""
    return storage.read(state.storage, bundles.storage_key(record.id, record.digest))
