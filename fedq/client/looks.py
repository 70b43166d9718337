"""What a picture shall look like."""

from typing import Literal, TypedDict


class FigureOptions(TypedDict, total=False):
    """How a picture is drawn; whatever is left out, as is customary."""

    width: str | float
    """`single` (89 mm) or `double` (183 mm) column, or in mm."""
    height: float
    """In mm; absent, 9/16 of the width."""
    font: Literal["sans", "serif"]
    """Letters without serifs or with, formulas alike."""
    size: float
    """Of letters in pt; absent, 10, and 8 where a width is given."""
    dpi: int
    """Resolution of a PNG."""
    markers: bool
    """Mark each line by a shape of its own, for print without colours."""
    title: str
    """Above the picture; absent, the name of what is drawn; empty, none."""
    log: Literal["none", "x", "y", "xy"]
    """Logarithmic axes; absent, as is customary for the metric."""
    xlim: str
    """Ends of the horizontal axis, as `0:100` or `10:`."""
    ylim: str
    """Ends of the vertical axis, likewise."""
