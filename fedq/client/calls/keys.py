"""Calls for API keys and the audit log."""

from collections.abc import AsyncGenerator

from fedq.client.calls.base import JSON, Calls
from fedq.client.transport import walk
from fedq.schemas import AuditEntry, AuditPage, Key, KeyEdit, KeyPage, KeyRequest, KeyStanding, Me, NewKey

KEYS = "/v1/keys"


class KeyCalls(Calls):
    """Create, read, edit and revoke API keys."""

    async def me(self) -> Me:
        """Return the key of this client with its scope and use of quotas."""
        return await self._transport.read(Me, "/v1/me")

    async def create_key(self, wanted: KeyRequest) -> NewKey:
        """Create an API key; its `key` is not shown again. For administrators."""
        return await self._transport.send(
            NewKey, "POST", KEYS, content=wanted.model_dump_json(), headers=JSON
        )

    def keys(self) -> AsyncGenerator[Key, None]:
        """Iterate over all keys, newest first. For administrators."""
        return walk(lambda cursor: self._transport.read(KeyPage, KEYS, cursor=cursor))

    async def key(self, id: str) -> KeyStanding:
        """Return a key and its use of quotas. For administrators; `me` returns one's own key."""
        return await self._transport.read(KeyStanding, f"{KEYS}/{id}")

    async def edit_key(self, id: str, changes: KeyEdit) -> Key:
        """Change the given fields; None removes an expiry date or a limit. For administrators."""
        content = changes.model_dump_json(exclude_unset=True)
        return await self._transport.send(Key, "PATCH", f"{KEYS}/{id}", content=content, headers=JSON)

    async def revoke_key(self, id: str) -> Key:
        """Revoke a key. For administrators."""
        return await self._transport.send(Key, "POST", f"{KEYS}/{id}/revoke", repeatable=True)

    def audit(
        self, *, owner: str | None = None, target: str | None = None
    ) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over changes and refused attempts, newest first. For administrators."""
        return walk(
            lambda cursor: self._transport.read(
                AuditPage, "/v1/audit", cursor=cursor, owner=owner, target=target
            )
        )
