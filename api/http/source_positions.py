"""Where in a YAML body each flaw stands, for those who read lines and not pointers."""

from collections.abc import Sequence

from fastapi import Request

from fedcore.spec import yaml_documents
from fedq.schemas import Flaw


def remember(request: Request, text: str) -> None:
    """Keep the YAML that a request brought, until it is answered."""
    request.state.yaml = text


def placed(request: Request, flaws: Sequence[Flaw]) -> list[Flaw]:
    """The flaws, those in a YAML body with line and column."""
    text: str | None = getattr(request.state, "yaml", None)
    if text is None:
        return list(flaws)
    found = yaml_documents.locate(
        text, {flaw.pointer for flaw in flaws if flaw.pointer == "" or flaw.pointer.startswith("/")}
    )
    return [_at(flaw, found.get(flaw.pointer)) for flaw in flaws]


def _at(flaw: Flaw, place: yaml_documents.SourcePosition | None) -> Flaw:
    return flaw if place is None else flaw.model_copy(update=place._asdict())
