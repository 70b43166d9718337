"""Style options shared by all commands that draw figures."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Literal, cast

import typer

from fedq.client.looks import FigureOptions

Width = Annotated[
    str | None, typer.Option(metavar="W", help="Width: single (89 mm), double (183 mm), or a number in mm.")
]
Height = Annotated[
    float | None, typer.Option(metavar="MM", help="Height in mm (default: 9/16 of the width).")
]
Font = Annotated[Literal["sans", "serif"], typer.Option(help="Font of text and formulas.")]
Size = Annotated[
    float | None, typer.Option(metavar="PT", help="Font size (default: 10, or 8 if --width is given).")
]
Dpi = Annotated[int, typer.Option(help="Resolution of PNG files.")]
Markers = Annotated[
    bool, typer.Option("--markers", help="Give each line its own marker, for printing in black and white.")
]
Title = Annotated[str | None, typer.Option(help="Title (default: the name of the experiment; empty: none).")]
Log = Annotated[
    Literal["none", "x", "y", "xy"] | None,
    typer.Option(help="Logarithmic axes (default: depends on the metric)."),
]
XLim = Annotated[
    str | None, typer.Option(metavar="LOW:HIGH", help="Limits of the horizontal axis, e.g. 0:100 or 10:.")
]
YLim = Annotated[
    str | None, typer.Option(metavar="LOW:HIGH", help="Limits of the vertical axis, e.g. 0:100 or 10:.")
]


def look_of(  # noqa: PLR0913, PLR0917 - one parameter per option
    width: Width = None,
    height: Height = None,
    font: Font = "sans",
    size: Size = None,
    dpi: Dpi = 150,
    markers: Markers = False,
    title: Title = None,
    log: Log = None,
    xlim: XLim = None,
    ylim: YLim = None,
) -> FigureOptions:
    """Style given by the options."""
    said = {"width": width, "height": height, "font": font, "size": size, "dpi": dpi, "markers": markers}
    said |= {"title": title, "log": log, "xlim": xlim, "ylim": ylim}
    return cast("FigureOptions", {name: value for name, value in said.items() if value is not None})


def drawing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `look_of` to a command, in place of its last parameter, `look`."""
    options = inspect.signature(look_of).parameters
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "look"]
    shown = [*own, *options.values()]

    @wraps(command)
    def complete(**given: object) -> None:
        look = look_of(**{name: given.pop(name) for name in options})  # type: ignore[arg-type]
        command(**given, look=look)

    # Typer reads a command's options from these two.
    complete.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    complete.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return complete
