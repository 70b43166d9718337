"""What the client hands out beyond what the service says: answers that a notebook shows."""

from typing import Literal

from fedq import schemas
from fedq.client import displays

Form = Literal["svg", "png", "pdf", "csv"]
BEGINNINGS: dict[bytes, Form] = {b"\x89PNG": "png", b"%PDF": "pdf", b"<?xml": "svg"}
"""Of the files."""


class Experiment(schemas.Experiment):
    """An experiment with its specification, arms and provenance."""

    def _repr_html_(self) -> str:
        return displays.experiment(self)


class Figure(bytes):
    """A picture: its bytes, SVG, PNG or PDF; or the numbers in it, CSV."""

    __slots__ = ()

    @property
    def form(self) -> Form:
        """Which of these."""
        return next((form for beginning, form in BEGINNINGS.items() if self.startswith(beginning)), "csv")

    def _repr_svg_(self) -> str | None:
        return self.decode() if self.form == "svg" else None

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.form == "png" else None
