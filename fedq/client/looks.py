"""Style of figures."""

from typing import Literal, TypedDict


class FigureOptions(TypedDict, total=False):
    """Style of a figure; omitted fields take their defaults."""

    width: str | float
    """Width: `single` (89 mm), `double` (183 mm), or in mm."""
    height: float
    """Height in mm (default: 9/16 of the width)."""
    font: Literal["sans", "serif"]
    """Font of text and formulas."""
    size: float
    """Font size in pt (default: 10, or 8 with a width)."""
    dpi: int
    """Resolution of PNG files."""
    markers: bool
    """Give each line its own marker, for printing in black and white."""
    title: str
    """Title (default: the name of the experiment; empty: none)."""
    log: Literal["none", "x", "y", "xy"]
    """Logarithmic axes (default: depends on the metric)."""
    xlim: str
    """Limits of the horizontal axis, e.g. `0:100` or `10:`."""
    ylim: str
    """Limits of the vertical axis, e.g. `0.5:1`."""
