"""`code`: the bundle of user code that an experiment runs, and stand-ins for its components.

The service reads specifications of bundles without their code, which only a confined process loads.
There a component of the bundle is a stand-in, which keeps the fields that the confined process has
validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedcore.block import KIND, LONGEST_KIND, Block
from fedcore.data.digest_files import Digest
from fedcore.families import bundle_kinds

Kind = Annotated[str, Field(max_length=LONGEST_KIND, pattern=f"^{KIND}$")]
FamilyName = Annotated[str, Field(max_length=40, pattern=r"^[a-z_]+$")]
MAX_KINDS = 1_000
"""Maximum number of kinds of a bundle, in all families together."""


def _few(kinds: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if sum(map(len, kinds.values())) > MAX_KINDS:
        raise ValueError(f"a bundle may define at most {MAX_KINDS} kinds")
    return kinds


Kinds = Annotated[
    dict[FamilyName, Annotated[tuple[Kind, ...], Field(fail_fast=True, max_length=MAX_KINDS)]],
    AfterValidator(_few),
]
"""The kinds that a bundle defines, by family."""


class CodeBundle(Block):
    """A code bundle: files with components that the specification uses by their kind.

    Give the digest alone, `code: sha256:...`; the service sets the other fields.
    """

    digest: Digest
    """SHA-256 of the bundle, as `POST /v1/bundles` returns it."""
    id: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[0-9a-z_]+$")] | None = None
    """Id of the stored bundle. The service sets it and ignores other values."""
    components: Kinds = {}
    """Kinds by family. The service sets them and ignores other values."""

    @model_validator(mode="before")
    @classmethod
    def _expand_digest(cls, value: Any) -> Any:
        return {"digest": value} if isinstance(value, str) else value


@contextmanager
def kinds_of(document: Any) -> Iterator[None]:
    """Within the block, specifications may use the kinds of the bundle of `document`."""
    try:
        code = CodeBundle.model_validate(document)
    except ValidationError:
        code = None  # The field `code` reports it.
    with bundle_kinds({} if code is None else code.components):
        yield
