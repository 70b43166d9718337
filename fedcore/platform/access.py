"""Who may do what: scopes, and API keys as text.

A key is `fq_<id>_<secret>`: the id finds its row, and the secret, 256 random bits, proves that it
is the one. Only its digest is stored. A fast hash is safe for 256 random bits; for a password that a
person chose it would not be.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from fedcore.errors import AuthenticationError

LOCAL = "local"
"""The owner of what was made before there were keys, and of what an embedded stack's own key
makes.
"""
_SHAPE = re.compile(r"fq_([0-9a-hjkmnp-tv-z]{26})_[0-9a-f]{64}", re.ASCII)


class Scope(StrEnum):
    """Permissions of a key; each includes those before it."""

    READ = "read"
    """May see what belongs to its owner."""
    SUBMIT = "submit"
    """May make, change and delete what belongs to its owner, too."""
    ADMIN = "admin"
    """Read and change the resources of all owners, and manage keys."""

    def covers(self, needed: "Scope") -> bool:
        """True if this scope includes `needed`."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a request, identified by its API key."""

    key_id: str
    owner: str
    scope: Scope
    code: bool = False
    """True if the key has the scope `code`, too: it may send code bundles, which workers run."""

    @property
    def sees(self) -> str | None:
        """The owner whose things are theirs to see; None: everybody's."""
        return None if self.scope is Scope.ADMIN else self.owner


class Token(NamedTuple):
    """A key as its user holds it."""

    text: str

    @classmethod
    def of(cls, key_id: str) -> Self:
        """A new secret for the key with this id."""
        return cls(f"fq_{key_id.removeprefix('key_')}_{secrets.token_hex(32)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises AuthenticationError for what cannot be a key."""
        if not _SHAPE.fullmatch(text):
            raise AuthenticationError("not an API key: FedQ keys have the form fq_<id>_<secret>")
        return cls(text)

    @property
    def key_id(self) -> str:
        """The id of its row."""
        return f"key_{self.text.split('_')[1]}"

    @property
    def digest(self) -> str:
        """SHA-256 of the key: all that is stored of it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def matches(self, digest: str) -> bool:
        """True if `digest` is this key's.

        Takes the same time however much of it is right.
        """
        return hmac.compare_digest(self.digest, digest)


def prefix_of(key_id: str) -> str:
    """The part of a key that may be shown."""
    return f"fq_{key_id.removeprefix('key_')}"
