"""Standard Webhooks (https://www.standardwebhooks.com): signatures, what a receiver's response
means, and the retry schedule.

While a secret is being replaced there are two, and the header carries a signature by each:
receivers take either.

The schedule is a formula of our own: `tenacity`, which retries for the workers, keeps the state of its
attempts in the process, and a delivery is tried for a day, by whichever dispatcher is there.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from standardwebhooks import Webhook

SECRET_BYTES = 32


def new_secret() -> str:
    """A secret that nobody has: `whsec_` and 32 random bytes in base 64."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def signed(id: str, moment: datetime, body: str, keys: Sequence[str]) -> Mapping[str, str]:
    """The headers that prove that `body` is the message `id`, sent at `moment` (in UTC) by whoever
    knows these secrets.
    """
    signatures = " ".join(Webhook(key).sign(id, moment, body) for key in keys)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": signatures,
    }


GONE = 410
"""By this HTTP status a receiver says that it wants nothing more."""


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """Outcome of an attempt to deliver."""

    seconds: float
    code: int | None = None
    """The HTTP status; None when there was none."""
    body: str = ""
    """The beginning of what was answered."""
    error: str | None = None
    """Why it failed, for whoever made the webhook; None when it was delivered."""
    retry_after_s: float = 0.0
    """How long the receiver asks to be left alone."""


FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 5.0, 3.0, 6 * 3_600.0
RETRIES = 11
"""After so many it is given up: 22.6 hours after the first attempt, were there no jitter."""
JITTER = 0.2
"""Each pause is longer or shorter by up to this share, so that what failed together is not tried
again together.
"""
DISABLED_AFTER_S = 3 * 86_400.0
"""A webhook of which nothing has been delivered for so long, though it was tried, is disabled."""


def pause_s(failures: int, chance: float, asked_s: float = 0.0) -> float | None:
    """Seconds to wait after so many failures in a row; None when it is time to give up.

    `chance` in [0, 1) is where in its span of jitter the pause lies. `asked_s` is how long the
    receiver asked to be left alone (its Retry-After), which is granted up to the longest pause.
    """
    if failures > RETRIES:
        return None
    pause = min(FIRST_PAUSE_S * GROWTH ** (failures - 1), LONGEST_PAUSE_S)
    return max(pause * (1 + JITTER * (2 * chance - 1)), min(asked_s, LONGEST_PAUSE_S))
