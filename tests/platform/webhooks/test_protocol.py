"""Deliveries that fail are tried again for about a day, ever more seldom, and not all at once."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from fedcore.platform.webhooks.protocol import (
    FIRST_PAUSE_S,
    JITTER,
    LONGEST_PAUSE_S,
    RETRIES,
    new_secret,
    pause_s,
    sign_message,
)


def pauses(chance: float) -> list[float]:
    return [
        pause
        for pause in takewhile(lambda pause: pause is not None, (pause_s(n, chance) for n in count(1)))
        if pause is not None
    ]


def test_the_pauses_triple_up_to_six_hours() -> None:
    assert pauses(0.5) == [5, 15, 45, 135, 405, 1215, 3645, 10935, 21600, 21600, 21600]


@given(st.floats(0, 1, exclude_max=True))
def test_retries_go_on_for_about_a_day_whatever_the_jitter(chance: float) -> None:
    assert len(pauses(chance)) == RETRIES
    assert 18 < sum(pauses(chance)) / 3_600 < 28


@given(st.integers(1, RETRIES), st.floats(0, 1, exclude_max=True))
def test_each_pause_is_within_its_jitter_and_bounds(failures: int, chance: float) -> None:
    pause = pause_s(failures, chance)
    assert pause is not None
    middle = pause_s(failures, 0.5)
    assert middle is not None
    assert abs(pause - middle) <= JITTER * middle + 1e-9
    assert FIRST_PAUSE_S * (1 - JITTER) <= pause <= LONGEST_PAUSE_S * (1 + JITTER)


@pytest.mark.parametrize(("asked", "granted"), [(0.0, 5.0), (60.0, 60.0), (1e9, LONGEST_PAUSE_S)])
def test_a_receiver_that_asks_for_a_longer_pause_gets_it_within_reason(asked: float, granted: float) -> None:
    assert pause_s(1, 0.5, asked) == granted


def test_asking_for_a_pause_is_no_way_to_be_tried_for_ever() -> None:
    assert pause_s(RETRIES + 1, 0.5, 60.0) is None


# Signatures are those of Standard Webhooks: by its published example, by its own library, and longhand.

# The example in the specification's own libraries.
SECRET, ID, SECONDS = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330
BODY, SIGNATURE = '{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_example() -> None:
    headers = sign_message(ID, datetime.fromtimestamp(SECONDS, UTC), BODY, SECRET)
    assert headers == {"webhook-id": ID, "webhook-timestamp": str(SECONDS), "webhook-signature": SIGNATURE}


def test_the_recursion_of_the_specification_longhand() -> None:
    secret, moment, body = (
        new_secret(),
        datetime(2026, 11, 22, 1, 2, 3, 999_999, tzinfo=UTC),
        '{"name":"Zoë"}',
    )
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{ID}.{int(moment.timestamp())}.{body}".encode(), hashlib.sha256).digest()
    assert (
        sign_message(ID, moment, body, secret)["webhook-signature"]
        == f"v1,{base64.b64encode(digest).decode()}"
    )


def test_only_its_own_secret_verifies_a_signature() -> None:
    secret, moment = new_secret(), datetime.now(UTC)
    headers = dict(sign_message(ID, moment, BODY, secret))
    assert Webhook(secret).verify(BODY, headers) == {"test": 2432232314}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, headers)


def test_a_secret_has_as_many_bytes_as_the_specification_asks_for_and_no_two_are_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in made} == {32}
