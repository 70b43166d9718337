"""Back-off of runs: the pause after a claim that ended badly.

It grows with the number of such claims in a row.

The moment is kept in the run's row, so every worker respects it, and users see it. Libraries such as
`tenacity` keep it in the process that retries, which here may be another each time.
"""

import random
from datetime import datetime

from sqlalchemy import ColumnElement, or_

from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import RunRecord

MAX_ATTEMPTS = 3
"""Claims in a row that may end without a committed round. Then the run fails."""
BACKOFF_S = 2.0
"""Pause after the first of them; each one doubles it."""
LONGEST_S = 300.0
"""Longest pause."""
_LEAST_SHARE = 0.5
"""Least part of a pause; the rest is drawn, so that runs that failed together do not come back
together.
"""


def after_error(attempts: int, backoff_s: float) -> float:
    """Pause after an error in a claim, `attempts` of which have ended badly in a row: backoff_s
    2^(attempts - 1), jittered.
    """
    # Before anything is raised to it: a power of two that is out of range is an error.
    doublings = min(max(0, attempts - 1), 64)
    return min(LONGEST_S, backoff_s * 2.0**doublings) * random.uniform(_LEAST_SHARE, 1.0)  # noqa: S311 - nothing to guess


def after_loss(attempts: int, backoff_s: float) -> float:
    """Pause after the loss of a worker: none the first time, for then it mostly was not the run's
    doing.
    """
    return after_error(attempts - 1, backoff_s) if attempts > 1 else 0.0


def until(pause_s: float) -> ColumnElement[datetime] | None:
    """Value of `RunRecord.not_before` for a pause."""
    return sql_now(pause_s) if pause_s > 0 else None


def over(run: type[RunRecord] = RunRecord) -> ColumnElement[bool]:
    """Condition of a run without a pause, or whose pause is over."""
    # The end of a pause is farther away than the longest pause where the clock was set back.
    now, latest = sql_now(), sql_now(LONGEST_S)
    return or_(run.not_before.is_(None), run.not_before <= now, run.not_before > latest)
