"""Responses with a notebook display."""

from typing import Literal

from fedq import schemas
from fedq.client import displays

Form = Literal["svg", "png", "pdf", "csv"]
BEGINNINGS: dict[bytes, Form] = {b"\x89PNG": "png", b"%PDF": "pdf", b"<?xml": "svg"}
"""First bytes of each file format."""


class Experiment(schemas.Experiment):
    """An experiment with its specification, arms and provenance."""

    def _repr_html_(self) -> str:
        return displays.experiment(self)


class Figure(bytes):
    """A figure as bytes: SVG, PNG or PDF; or its numbers as CSV."""

    __slots__ = ()

    @property
    def form(self) -> Form:
        """File format."""
        return next((form for beginning, form in BEGINNINGS.items() if self.startswith(beginning)), "csv")

    def _repr_svg_(self) -> str | None:
        return self.decode() if self.form == "svg" else None

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.form == "png" else None
