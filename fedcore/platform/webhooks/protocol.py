"""Standard Webhooks (https://www.standardwebhooks.com): signatures, what a receiver's response
means, and the retry schedule.

The schedule is a formula of our own: `tenacity`, which retries for the workers, keeps the state of its
attempts in the process, and a delivery is tried for a day, by whichever dispatcher is there.
"""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from standardwebhooks import Webhook

SECRET_BYTES = 32


def new_secret() -> str:
    """Create a secret: `whsec_` and 32 random bytes in base 64."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def sign_message(id: str, moment: datetime, body: str, secret: str) -> Mapping[str, str]:
    """Headers that sign `body` with `secret` as the message `id`, sent at `moment` (in UTC)."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Webhook(secret).sign(id, moment, body),
    }


GONE = 410
"""HTTP status by which a receiver unsubscribes."""


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """Outcome of an attempt to deliver."""

    code: int | None = None
    """The HTTP status; None when there was none."""
    error: str | None = None
    """Why it failed, for the owner of the webhook; None when it was delivered."""
    retry_after_s: float = 0.0
    """Retry-After of the receiver."""


FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 5.0, 3.0, 6 * 3_600.0
RETRIES = 11
"""A delivery fails after this many retries: without jitter, 22.6 hours after the first attempt."""
JITTER = 0.2
"""Each pause varies by up to this share, so that deliveries that failed together are not retried
together.
"""
DISABLED_AFTER_S = 3 * 86_400.0
"""A webhook whose deliveries have all failed for this long is disabled."""


def pause_s(failures: int, chance: float, asked_s: float = 0.0) -> float | None:
    """Pause after `failures` in a row; None when the delivery fails for good.

    `chance` in [0, 1) is the position within the jitter. `asked_s` is the receiver's Retry-After,
    granted up to the longest pause.
    """
    if failures > RETRIES:
        return None
    pause = min(FIRST_PAUSE_S * GROWTH ** (failures - 1), LONGEST_PAUSE_S)
    return max(pause * (1 + JITTER * (2 * chance - 1)), min(asked_s, LONGEST_PAUSE_S))
