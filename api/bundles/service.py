"""Code bundles: received, checked in a confined process, stored, and specifications that use them.

No code of a bundle runs in this process.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import structlog
from fastapi import Depends, HTTPException, Request

from api.http.authentication import Sender, Submitter
from api.http.dependencies import AppState, AppStateDep
from api.http.documents import (
    JSON,
    MAX_BYTES,
    Document,
    Parsed,
    document_within,
    pieces_within,
    validate,
)
from api.http.problems import InvalidDocumentError
from api.uploads import store_upload
from fedcore import bundles
from fedcore.errors import ExtensionError, ForbiddenError, UserCodeError
from fedcore.families import StandIn
from fedcore.lazy import LazyModule
from fedcore.platform import storage
from fedcore.platform.access import Principal
from fedcore.platform.store import bundles as stored
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.tables import BundleRecord
from fedcore.spec import ExperimentSpec
from fedcore.spec.code import CodeBundle
from fedcore.spec.components import find_outermost
from fedcore.spec.search import Study
from fedq.planning.estimates import RunEstimate
from workers.confined.confinement import ConfinementError

if TYPE_CHECKING:
    from workers.confined import check
else:
    # Loaded with the first bundle.
    check = LazyModule("workers.confined.check")

log = structlog.stdlib.get_logger("fedq.api")

MEDIA_TYPE = "application/octet-stream"
ResultsDocument = Annotated[
    Parsed, document_within({**MAX_BYTES, JSON: MAX_BYTES[JSON] + 4 * bundles.MAX_ARCHIVE_BYTES // 3})
]
"""A results file: as other documents, with the archive of a code bundle in Base64."""


class Prepared(NamedTuple):
    """A specification that uses a bundle."""

    spec: ExperimentSpec
    """The specification with stand-ins for the components of the bundle, which have the fields that
    it has given them.
    """
    estimates: Sequence[RunEstimate]
    """Estimates by arm, as the bundle says."""


async def receive(request: Request, principal: Sender, state: AppStateDep) -> AsyncIterator[bytes]:
    """Yield the body, read once the key has a free slot; 413 if it is larger than a bundle may be."""
    limit = bundles.MAX_ARCHIVE_BYTES
    excess = f"The bundle exceeds {limit} bytes; leave out data and results."
    pieces = pieces_within(request, limit, excess)
    async with state.code_slots.of(principal.key_id):
        yield b"".join([piece async for piece in pieces])


async def _hold_slot(principal: Submitter, state: AppStateDep) -> AsyncIterator[None]:
    """Hold one of the key's slots: what follows may load a bundle, in a process of 0.7 GB."""
    async with state.code_slots.of(principal.key_id):
        yield


async def _hold_slot_for_code(
    principal: Submitter, document: Document, state: AppStateDep
) -> AsyncIterator[None]:
    """Hold one of the key's slots if the document, or the overrides of a preset in it, have `code`."""
    overrides = document.value.get("overrides") if isinstance(document.value, dict) else None
    needed = has_code(document.value) or has_code(overrides)
    async with state.code_slots.of(principal.key_id) if needed else nullcontext():
        yield


async def _hold_slot_for_results(
    principal: Submitter, document: ResultsDocument, state: AppStateDep
) -> AsyncIterator[None]:
    """Hold one of the key's slots if the results file has `code`."""
    async with state.code_slots.of(principal.key_id) if has_code(document.value) else nullcontext():
        yield


def has_code(document: Any) -> bool:
    """True for a mapping with `code`."""
    return isinstance(document, dict) and document.get("code") is not None


Slot = Annotated[None, Depends(_hold_slot, scope="function")]
CodeSlot = Annotated[None, Depends(_hold_slot_for_code, scope="function")]
ResultsSlot = Annotated[None, Depends(_hold_slot_for_results, scope="function")]


def keep(
    archive: bytes, principal: Principal, facts: AuditFacts, state: AppState
) -> tuple[BundleRecord, bool]:
    """Check a bundle and store it; also returns whether it is new.

    Raises InvalidDocumentError with the errors in its code, QuotaError and BusyError.
    """
    with _errors_at("code"):
        files = bundles.list_files(archive)
        checked = check.check_bundle(archive, state.settings)
    if checked.flaws:
        raise InvalidDocumentError(checked.flaws)
    return store_upload(
        stored.BUNDLES,
        archive,
        bundles.digest(archive),
        principal,
        facts,
        state,
        files=[file._asdict() for file in files],
        components=checked.components,
    )


def prepare(document: Mapping[str, Any], state: AppState, principal: Principal) -> Prepared:
    """Validate a specification with `code`: in this process with stand-ins for the components of
    its bundle, and in a confined process that loads the bundle.

    From the answer of that process only the fields of the bundle's own components and the estimates
    are taken; everything else is as it was sent and as this process validates it.

    Raises ForbiddenError for a key without the scope `code`, InvalidDocumentError or
    SpecificationError with the errors, with file and line in the bundle where they are, and BusyError.
    """
    _require_scope(principal)
    code = validate(CodeBundle, document["code"], "/code")
    with state.database.reading() as session:
        record = stored.find(session, code.digest, principal.sees, principal.owner)
    document = {**document, "code": code_of(record)}
    with _errors_at("/code"):
        answer = check.prepare(archive_of(record, state), document, state.settings)
    if answer.flaws:
        raise InvalidDocumentError(answer.flaws)
    spec = validate(ExperimentSpec, _with_components(document, answer.components))
    own = {pointer for pointer, _ in find_outermost(spec, lambda block: isinstance(block, StandIn))}
    if own != answer.components.keys():
        given = ", ".join(sorted(answer.components)) or "none"
        raise InvalidDocumentError.at(
            "/code",
            f"the bundle gives fields of {given}, but its components are {', '.join(sorted(own)) or 'none'}",
        )
    arms = 1 if isinstance(spec.search, Study) else spec.arm_count
    if len(answer.estimates) != arms:
        raise InvalidDocumentError.at(
            "/code", f"the bundle gives {len(answer.estimates)} estimates for {arms} arms"
        )
    return Prepared(spec, answer.estimates)


def bring(
    archive: bytes | None, code: CodeBundle, principal: Principal, facts: AuditFacts, state: AppState
) -> dict[str, Any]:
    """Return the field `code` of an imported experiment that names the bundle `code`.

    `archive`, from the results file, becomes a bundle of the principal's, as one that was sent. Without it,
    the bundle is one that the principal may use, or the answer has no id.

    Raises ForbiddenError for an `archive` and a key without the scope `code`, InvalidDocumentError,
    QuotaError and BusyError.
    """
    if archive is not None:
        _require_scope(principal, "; `fedq import --without-code` imports the results alone")
        if bundles.digest(archive) != code.digest:
            raise InvalidDocumentError.at(
                "/code", f"must be the archive of {code.digest}: the file is damaged or was modified"
            )
    with state.database.reading() as session:
        record = stored.find_if_any(session, code.digest, principal.sees, principal.owner)
    if archive is not None and (record is None or record.owner != principal.owner):
        record, _ = keep(archive, principal, facts, state)
    return {**code.model_dump(mode="json"), "id": None} if record is None else code_of(record)


def _require_scope(principal: Principal, otherwise: str = "") -> None:
    if not principal.code:
        raise ForbiddenError(
            f"`code` requires a key of scope `code`; create one with `fedq key create --code`{otherwise}"
        )


def _with_components(document: Any, components: Mapping[str, dict[str, Any]]) -> Any:
    """`document` with the fields of blocks by their pointers, where it has a block of the same kind."""
    filled = deepcopy(document)
    for pointer, fields in components.items():
        *path, last = pointer.split("/")[1:] or [""]
        block = filled
        for part in path:
            block = _entry(block, part)
        sent = _entry(block, last)
        if not isinstance(sent, dict) or "kind" not in sent or sent["kind"] != fields.get("kind"):
            raise InvalidDocumentError.at(
                "/code", f"the bundle gives fields of {pointer}, which is not its own"
            )
        sent.clear()
        sent.update(fields)
    return filled


def _entry(block: Any, part: str) -> Any:
    """An entry of a mapping or a list by a part of a pointer; None if there is none."""
    if isinstance(block, dict):
        return block.get(part)
    if isinstance(block, list) and part.isdecimal() and int(part) < len(block):
        return block[int(part)]
    return None


@contextmanager
def _errors_at(pointer: str) -> Iterator[None]:
    """Turn errors of a bundle within the block into InvalidDocumentError at this pointer; 501 where
    this process cannot confine one.
    """
    try:
        yield
    except (ExtensionError, UserCodeError) as error:
        raise InvalidDocumentError.at(pointer, str(error)) from error
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
