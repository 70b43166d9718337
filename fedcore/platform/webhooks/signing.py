"""Signatures as Standard Webhooks has them (https://www.standardwebhooks.com): HMAC-SHA256 of `<id>.<seconds>.<body>` under the secret.

While a secret is being replaced there are two, and the header carries a signature by each: receivers take either.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime

from standardwebhooks import Webhook

SECRET_BYTES = 32


def new_secret() -> str:
    """A secret that nobody has: `whsec_` and 32 random bytes in base 64."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def signed(id: str, moment: datetime, body: str, keys: Sequence[str]) -> Mapping[str, str]:
    """The headers that prove that `body` is the message `id`, sent at `moment` (in UTC) by whoever knows these secrets."""
    signatures = " ".join(Webhook(key).sign(id, moment, body) for key in keys)
    return {"webhook-id": id, "webhook-timestamp": str(int(moment.timestamp())), "webhook-signature": signatures}
