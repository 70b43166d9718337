"""Signatures are those of Standard Webhooks: by its published example, by its own library, and
longhand.
"""

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from fedcore.platform.webhooks.protocol import new_secret, signed

# The example in the specification's own libraries.
SECRET, ID, SECONDS = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330
BODY, SIGNATURE = '{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_example() -> None:
    headers = signed(ID, datetime.fromtimestamp(SECONDS, UTC), BODY, SECRET)
    assert headers == {"webhook-id": ID, "webhook-timestamp": str(SECONDS), "webhook-signature": SIGNATURE}


def test_the_recursion_of_the_specification_longhand() -> None:
    secret, moment, body = (
        new_secret(),
        datetime(2026, 11, 22, 1, 2, 3, 999_999, tzinfo=UTC),
        '{"name":"Zoë"}',
    )
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{ID}.{int(moment.timestamp())}.{body}".encode(), hashlib.sha256).digest()
    assert signed(ID, moment, body, secret)["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_only_its_own_secret_verifies_a_signature() -> None:
    secret, moment = new_secret(), datetime.now(UTC)
    headers = dict(signed(ID, moment, BODY, secret))
    assert Webhook(secret).verify(BODY, headers) == {"test": 2432232314}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, headers)


def test_a_secret_has_as_many_bytes_as_the_specification_asks_for_and_no_two_are_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in made} == {32}
