"""A file of presets: one figure or table, in panels, in full and small, with what was published and
claimed of it.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Finite
from fedcore.presets.claims import PublishedClaim, Statistic

Document = dict[str, Any]
PanelName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
SMALL = "small"


class Small(Block):
    """The form that takes a minute or two on two cores."""

    changes: Document
    """Changes to the specification."""
    departures: tuple[str, ...]
    """The resulting differences from the source."""


class Panel(Block):
    """A part of a figure with an experiment of its own: a data set, a setting."""

    title: str
    """Title above the panel."""
    changes: Document = Field(default_factory=dict)
    """Changes to the sheet's specification."""
    departures: tuple[str, ...] = ()
    """Where it, beside the sheet, differs from the source."""
    small: Small | None = None
    """Changes of its small form beside the changes of the sheet's small form."""


class Number(Block):
    """A number as published."""

    mean: Finite
    std: Finite | None = None


class Published(Block):
    """Numbers of one metric as published, in the unit in which FedQ reports it (accuracies from 0
    to 1).
    """

    source: str
    """Table, figure or section in which the numbers are printed."""
    metric: str
    """Name of the metric, as a result has it."""
    statistic: Statistic
    """Statistic of each run's curve to compare with them."""
    target: Finite | None = None
    """The value that `rounds_to` has to reach."""
    panel: str | None = None
    """The panel they belong to; absent, the only one."""
    numbers: dict[str, Number]
    """Numbers by arm."""

    @model_validator(mode="after")
    def _has_its_target(self) -> Self:
        if (self.statistic == "rounds_to") != (self.target is not None):
            raise ValueError("`target` goes with `rounds_to`")
        return self


class Drawing(Block):
    """How the figure is drawn: a grid of axes, in each of them a line for each arm."""

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    """Metrics drawn, each in a row of its own."""
    rows: str | None = None
    """The swept path whose values have rows of their own."""
    columns: str | None = None
    """The swept path whose values have columns of their own, beside the panels' columns."""
    scale: Literal["linear", "log"] = "linear"
    """Scale of the vertical axes."""


class Sheet(Block):
    """The contents of one file."""

    version: int
    """Goes up when a specification changes."""
    title: str
    """Title of the figure or table."""
    source: str
    """The publication, table or figure it follows."""
    also: tuple[PanelName, ...] = ()
    """Further figures and tables that it shows, by the names they would have."""
    departures: tuple[str, ...] = ()
    """Where it differs from its source."""
    spec: Document
    """The specification in full, or what the panels have in common."""
    panels: dict[PanelName, Panel] = Field(default_factory=dict)
    """The panels by name, if there are several."""
    small: Small | None = None
    """The small form of the sheet."""
    figure: Drawing | None = None
    """How it is drawn; absent, it is a table."""
    published: tuple[Published, ...] = ()
    """Published numbers."""
    claims: tuple[PublishedClaim, ...] = ()
    """Published claims."""

    @property
    def parts(self) -> dict[str, Panel]:
        """The panels; a sheet without any is one by itself, whose name is empty."""
        return self.panels or {"": Panel(title=self.title)}

    def claims_of(self, panel: str) -> list[PublishedClaim]:
        """Return the claims about a panel."""
        return [claim for claim in self.claims if not claim.panels or panel in claim.panels]

    def published_of(self, panel: str) -> list[Published]:
        """Return the published numbers of a panel."""
        return [published for published in self.published if (published.panel or "") == panel]


class Variant(NamedTuple):
    """A panel of a sheet in one of its forms."""

    panel: str
    small: bool

    @property
    def suffix(self) -> str:
        """The suffix of the preset's name after the sheet's."""
        return "".join(f"-{part}" for part in (self.panel, SMALL if self.small else "") if part)


def list_variants(sheet: Sheet) -> Iterator[Variant]:
    """Return all panels in all forms."""
    for name, panel in sheet.parts.items():
        yield Variant(name, small=False)
        if sheet.small or panel.small:
            yield Variant(name, small=True)
