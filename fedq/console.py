"""A terminal for text of users: the command line and the progress of `client.wait` print to it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from fedcore.visible_text import visible


def progress_bars(console: Console, *, disable: bool = False) -> Progress:
    """Bars whose tasks have a field `note`, shown behind the time."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=console, disable=disable)


class PlainConsole(Console):
    """Console that takes text as it is, without markup, and shows control and bidirectional characters as
    escapes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render what is printed, wherever in it the text of users is."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
