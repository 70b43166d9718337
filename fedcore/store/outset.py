"""What whoever makes something asks of the database first, in one statement instead of one for each."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.store import notices, quotas
from fedcore.store.clock import now

_ALL = select(now(), notices.LISTENED, quotas.LIMITED)


def ask(session: Session, key_id: str) -> None:
    """Let `clock.moment`, notices, and the quotas of this key need no statement of their own in this transaction."""
    moment, listened, limited = session.execute(_ALL, {"key_id": key_id}).one()
    session.info.update(moment=moment, listened=listened, limited={key_id: limited})
