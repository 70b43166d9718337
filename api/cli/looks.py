"""The options that say what a picture looks like, the same for every command that draws one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Literal, cast

import typer

from api.client.looks import Look

Width = Annotated[str | None, typer.Option(metavar="W", help="single (89 mm) or double (183 mm) column, or in mm.")]
Height = Annotated[float | None, typer.Option(metavar="MM", help="Absent, 9/16 of the width.")]
Font = Annotated[Literal["sans", "serif"], typer.Option(help="Letters without serifs or with, formulas alike.")]
Size = Annotated[float | None, typer.Option(metavar="PT", help="Of letters; absent, 10, and 8 where a width is given.")]
Dpi = Annotated[int, typer.Option(help="Resolution of a PNG.")]
Markers = Annotated[bool, typer.Option("--markers", help="Mark each line by a shape of its own, for print without colours.")]
Title = Annotated[str | None, typer.Option(help="Above the picture; absent, the name of what is drawn; empty, none.")]
Log = Annotated[Literal["none", "x", "y", "xy"] | None, typer.Option(help="Logarithmic axes; absent, as is customary for the metric.")]
XLim = Annotated[str | None, typer.Option(metavar="LOW:HIGH", help="Ends of the horizontal axis, as 0:100 or 10:.")]
YLim = Annotated[str | None, typer.Option(metavar="LOW:HIGH", help="Ends of the vertical axis, likewise.")]


def look_of(  # noqa: PLR0913, PLR0917 - what can be said of a picture
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
) -> Look:
    """What these options say."""
    said = {"width": width, "height": height, "font": font, "size": size, "dpi": dpi, "markers": markers}
    said |= {"title": title, "log": log, "xlim": xlim, "ylim": ylim}
    return cast("Look", {name: value for name, value in said.items() if value is not None})


def drawing(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `look_of` for its last parameter, `look`."""
    options = inspect.signature(look_of).parameters
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "look"]
    shown = [*own, *options.values()]

    @wraps(command)
    def complete(**given: object) -> None:
        look = look_of(**{name: given.pop(name) for name in options})  # type: ignore[arg-type]
        command(**given, look=look)

    # Typer reads a command's options off these two.
    complete.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    complete.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return complete
