"""The results of an experiment as a table on a terminal."""

from rich.table import Table

from fedq.cli.views import table
from fedq.results.comparison import comparison as compared
from fedq.schemas import ArmResults


def comparison(results: ArmResults, metric: str | None = None) -> Table:
    """Table of the arms in one metric, by default the main metric of the experiment."""
    return table(*compared(results, metric))
