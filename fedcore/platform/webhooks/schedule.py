"""When a delivery that failed is tried again: after pauses that grow threefold from 5 s to 6 h, for about a day in all."""

FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 5.0, 3.0, 6 * 3_600.0
RETRIES = 11
"""After so many it is given up: 22.6 hours after the first attempt, were there no jitter."""
JITTER = 0.2
"""Each pause is longer or shorter by up to this share, so that what failed together is not tried again together."""
DISABLED_AFTER_S = 3 * 86_400.0
"""A webhook of which nothing has been delivered for so long, though it was tried, is disabled."""


def pause_s(failures: int, chance: float, asked_s: float = 0.0) -> float | None:
    """Seconds to wait after so many failures in a row; None when it is time to give up.

    `chance` in [0, 1) is where in its span of jitter the pause lies. `asked_s` is how long the receiver asked to be left alone (its
    Retry-After), which is granted up to the longest pause.
    """
    if failures > RETRIES:
        return None
    pause = min(FIRST_PAUSE_S * GROWTH ** (failures - 1), LONGEST_PAUSE_S)
    return max(pause * (1 + JITTER * (2 * chance - 1)), min(asked_s, LONGEST_PAUSE_S))
