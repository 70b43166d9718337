"""Rate limits: each API key has a bucket of tokens that fills at a steady rate, and each request
takes one.

If the broker is a Redis, the buckets are there and apply to all processes together. Otherwise, and
while that Redis is unreachable, each process has its own.

The library `limits` (5.8.0) was tried and is as fast (0.10 ms a request on a local Redis), but has
windows and no token bucket: after a burst it refuses everything until the window of BURST_S has
passed, where `FEDQ_RATE_LIMIT` promises a steady rate.
"""

import asyncio
import math
import time
from collections.abc import MutableMapping
from typing import NamedTuple

import structlog

from fedcore.errors import RateError
from fedcore.lazy import redis
from fedcore.settings import Settings

MAX_BUCKETS = 10_000
BURST_S = 5.0
"""A key that has sent nothing for this long may send the requests of this time at once."""
PATIENCE_S, LIMIT_S = 0.25, 0.5
"""A Redis is taken to be unreachable after this long without a sign of life, and after this long in
all.
"""
AVOIDED_S = 5.0
"""It is then not used for this long."""
TAKE = """
local clock = redis.call('TIME')
local now, rate, burst = clock[1] + clock[2] / 1e6, tonumber(ARGV[1]), tonumber(ARGV[2])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(burst, (tonumber(kept[1]) or burst) + (now - (tonumber(kept[2]) or now)) * rate)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = (1 - tokens) / rate end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 1)
return {tostring(tokens), tostring(wait)}
"""
"""`_LocalBuckets.take` by the clock of the Redis."""

log = structlog.stdlib.get_logger("fedq.api")


class _Taken(NamedTuple):
    """State of a bucket after a request has asked for a token."""

    tokens: float
    wait_s: float
    """Time until there is one; 0 if it was given one."""


class RateLimiter:
    """Buckets of all keys. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._rate, self._burst = settings.rate_limit, math.ceil(BURST_S * settings.rate_limit)
        self._local = _LocalBuckets(self._rate, self._burst)
        shared = settings.broker.startswith(("redis://", "rediss://"))
        self._redis = (
            redis.Redis.from_url(
                settings.broker, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S
            )
            if shared
            else None
        )
        self._avoided_until = 0.0

    async def take(self, key_id: str, headers: MutableMapping[str, str]) -> None:
        """Take a token for a request of this key and tell `headers` how many are left; raises
        RateError if there is none.

        The header fields follow draft-ietf-httpapi-ratelimit-headers-10: `q` requests in `w`
        seconds are allowed, `r` are left, and in `t` seconds all are there again.
        """
        if self._rate == 0:
            return
        taken = await self._shared(key_id)
        full_s = math.ceil((self._burst - taken.tokens) / self._rate)
        window_s = math.ceil(self._burst / self._rate)
        headers["RateLimit-Policy"] = f'"default";q={self._burst};w={window_s}'
        headers["RateLimit"] = f'"default";r={math.floor(taken.tokens)};t={full_s}'
        if taken.wait_s > 0:
            allowed = f"{self._rate:g} requests per second with bursts of {self._burst} (FEDQ_RATE_LIMIT)"
            raise RateError(
                f"rate limit exceeded: {allowed}; try again in {taken.wait_s:.1f} s", math.ceil(taken.wait_s)
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._redis is not None:
            await self._redis.aclose()

    async def _shared(self, key_id: str) -> _Taken:
        if self._redis is not None and time.monotonic() >= self._avoided_until:
            try:
                async with asyncio.timeout(LIMIT_S):
                    tokens, wait_s = await self._redis.eval(
                        TAKE, 1, f"fedq.rate.{key_id}", str(self._rate), str(self._burst)
                    )
                    return _Taken(float(tokens), float(wait_s))
            except (redis.RedisError, TimeoutError) as error:
                self._avoided_until = time.monotonic() + AVOIDED_S
                log.warning(
                    "rate limits apply to each process alone", error=str(error) or "the broker is slow"
                )
        return self._local.take(key_id, time.monotonic())


class _Bucket(NamedTuple):
    tokens: float
    at_s: float


class _LocalBuckets:
    """Buckets of this process."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str, now_s: float) -> _Taken:
        """Take a token, if there is one."""
        before = self._buckets.get(name, _Bucket(self._burst, now_s))
        tokens = min(self._burst, before.tokens + (now_s - before.at_s) * self._rate)
        if len(self._buckets) >= MAX_BUCKETS:
            self._buckets.clear()
        left = tokens - 1 if tokens >= 1 else tokens
        self._buckets[name] = _Bucket(left, now_s)
        return _Taken(left, 0.0 if tokens >= 1 else (1 - tokens) / self._rate)
