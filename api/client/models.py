"""What the client hands out beyond what the service says: answers that a notebook shows."""

from typing import Literal

from api import schemas
from api.client import displays

Form = Literal["svg", "png"]
PNG = b"\x89PNG"


class Experiment(schemas.Experiment):
    """An experiment with its specification, arms and provenance."""

    def _repr_html_(self) -> str:
        return displays.experiment(self)


class Figure(bytes):
    """A picture: its bytes, SVG or PNG."""

    __slots__ = ()

    @property
    def form(self) -> Form:
        """Which of the two."""
        return "png" if self.startswith(PNG) else "svg"

    def _repr_svg_(self) -> str | None:
        return self.decode() if self.form == "svg" else None

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.form == "png" else None
