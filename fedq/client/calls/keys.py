"""API keys, and who did what with them."""

from collections.abc import AsyncGenerator

from fedq.client.calls.base import JSON, Calls
from fedq.client.transport import walk
from fedq.schemas import AuditEntry, AuditPage, Key, KeyEdit, KeyPage, KeyRequest, KeyStanding, Me, NewKey

KEYS = "/v1/keys"


class KeyCalls(Calls):
    """Makes, reads, changes and ends API keys."""

    async def me(self) -> Me:
        """The key that this client sends, and what it allows."""
        return await self._transport.read(Me, "/v1/me")

    async def create_key(self, wanted: KeyRequest) -> NewKey:
        """Make an API key; its `key` cannot be read again. For administrators."""
        return await self._transport.send(NewKey, "POST", KEYS, content=wanted.model_dump_json(), headers=JSON)

    def keys(self) -> AsyncGenerator[Key, None]:
        """All keys, newest first, fetched page by page. For administrators."""
        return walk(lambda cursor: self._transport.read(KeyPage, KEYS, cursor=cursor))

    async def key(self, id: str) -> KeyStanding:
        """A key, and how much of its quotas is used. For administrators; `me` tells everybody of their own."""
        return await self._transport.read(KeyStanding, f"{KEYS}/{id}")

    async def edit_key(self, id: str, changes: KeyEdit) -> Key:
        """Change what is given and leave the rest; None takes an end or a limit away. For administrators."""
        content = changes.model_dump_json(exclude_unset=True)
        return await self._transport.send(Key, "PATCH", f"{KEYS}/{id}", content=content, headers=JSON)

    async def revoke_key(self, id: str) -> Key:
        """End a key. For administrators."""
        return await self._transport.send(Key, "POST", f"{KEYS}/{id}/revoke", repeatable=True)

    def audit(self, *, owner: str | None = None, target: str | None = None) -> AsyncGenerator[AuditEntry, None]:
        """Who changed what, or tried to, newest first, fetched page by page. For administrators."""
        return walk(lambda cursor: self._transport.read(AuditPage, "/v1/audit", cursor=cursor, owner=owner, target=target))
