"""What whoever makes something asks of the database first, in one statement instead of one for each."""

from collections.abc import Collection

from sqlalchemy import and_, bindparam, literal, select
from sqlalchemy.orm import Session

from fedcore.platform.store import notices, quotas
from fedcore.platform.store.clock import now
from fedcore.platform.store.tables import KeyRecord

_ONCE = select(literal(1)).subquery()
_HELD = and_(KeyRecord.id.in_(bindparam("key_ids", expanding=True)), quotas.HAS_QUOTAS)
_ALL = select(now(), notices.LISTENED, KeyRecord.id).select_from(_ONCE.outerjoin(KeyRecord, _HELD))


def ask(session: Session, key_ids: Collection[str]) -> None:
    """Let `clock.moment`, notices, and the quotas of these keys need no statement of their own in this transaction."""
    rows = session.execute(_ALL, {"key_ids": sorted(key_ids)}).all()
    moment, listened, _ = rows[0]
    held = {key_id for _, _, key_id in rows}
    session.info.update(moment=moment, listened=listened, limited={key_id: key_id in held for key_id in key_ids})
