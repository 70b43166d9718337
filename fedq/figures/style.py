"""What a picture shall look like: as wide as a paper's column, in its font, fit for print without
colours. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Font = Literal["sans", "serif"]
Log = Literal["none", "x", "y", "xy"]
Limits = tuple[float | None, float | None]

WIDTHS: Mapping[str, float] = {"single": 89.0, "double": 183.0}
"""Of one column and of two, in mm."""
WIDE_MM, NARROWEST_MM, WIDEST_MM = 203.2, 30.0, 500.0
RATIO = 9 / 16
INCH_MM = 25.4
FAMILIES: Mapping[Font, Mapping[str, str]] = {
    "sans": {"font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"},
    "serif": {"font.family": "STIXGeneral", "mathtext.fontset": "stix"},
}
"""Fonts that come with Matplotlib; STIX looks like Times."""
LOGARITHMIC = frozenset({"suboptimality", "distance"})
"""Metrics that are drawn over a logarithmic axis unless told otherwise."""


@dataclass(frozen=True, slots=True)
class FigureStyle:
    """How a picture is drawn."""

    width_mm: float = WIDE_MM
    height_mm: float | None = None
    """None: 9/16 of the width."""
    font: Font = "sans"
    size_pt: float = 10.0
    dpi: int = 150
    markers: bool = False
    title: str | None = None
    """None: the name of what is drawn; empty: none."""
    log: Log | None = None
    """Which axes are logarithmic; None: as is customary for the metric."""
    xlim: Limits = (None, None)
    ylim: Limits = (None, None)

    @property
    def inches(self) -> tuple[float, float]:
        """Width and height."""
        return self.width_mm / INCH_MM, (self.height_mm or RATIO * self.width_mm) / INCH_MM

    @property
    def pixels(self) -> int:
        """Of a PNG."""
        width, height = self.inches
        return int(width * self.dpi) * int(height * self.dpi)

    @property
    def settings(self) -> Mapping[Any, Any]:
        """Matplotlib's."""
        return {
            **FAMILIES[self.font],
            "font.size": self.size_pt,
            "lines.linewidth": 0.15 * self.size_pt,
            "lines.markersize": 0.4 * self.size_pt,
        }

    def logarithmic(self, axis: Literal["x", "y"], metric: str) -> bool:
        """Whether an axis is."""
        return (
            (axis == "y" and metric in LOGARITHMIC)
            if self.log is None
            else axis in self.log.replace("none", "")
        )
