"""API keys as answers."""

from fedcore.platform.access import prefix_of
from fedcore.platform.store.tables import KeyRecord
from fedq.schemas import Key


def key_answer(record: KeyRecord) -> Key:
    """A key, as far as it may be shown."""
    return Key(
        id=record.id,
        prefix=prefix_of(record.id),
        name=record.name,
        owner=record.owner,
        scope=record.scope,
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
        max_waiting_runs=record.max_waiting_runs,
        max_running_runs=record.max_running_runs,
        max_stored_bytes=record.max_stored_bytes,
        max_compute_seconds=record.max_compute_seconds,
    )
