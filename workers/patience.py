"""Patience: what a worker does when the database or the storage is away; it tries again for a while, its run in its hands."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from fedcore.errors import StorageError
from fedcore.platform.store import UNAVAILABLE

_AGAIN_S = 0.5
PASSING = (StorageError, *UNAVAILABLE)
"""What may be over in a while."""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def patiently(act: Callable[[bool], Result], for_s: float, given_up: Callable[[], bool] = lambda: False) -> Result:
    """What `act` returns, tried again for `for_s` seconds while it raises what may pass, or until it is `given_up`.

    It is told whether this is a further try: an earlier one may have gone through.
    """
    until, again = time.monotonic() + for_s, False
    while True:
        try:
            return act(again)
        except PASSING as error:
            if time.monotonic() >= until or given_up():
                raise
            log.warning("tried again in %.1f s: %s", _AGAIN_S, error)
        again = True
        time.sleep(_AGAIN_S)
