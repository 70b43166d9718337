"""The results of an experiment as a table on a terminal."""

from rich.table import Table

from api.cli.views import table
from api.results.comparison import comparison as compared
from api.schemas import ArmResults


def comparison(results: ArmResults, metric: str | None = None) -> Table:
    """Its arms, compared in one metric; absent, the most telling one."""
    return table(*compared(results, metric))
