"""A limit for slow request bodies, so that no client holds a request open by not sending what it
announced.
"""

from asyncio import get_running_loop, timeout

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GRACE_S = 30.0
"""How far a body may fall behind the slowest rate."""
SLOWEST_RATE = 500.0
"""Bytes a second."""


class BodyTimeout:
    """Middleware that ends the wait for a body that arrives too slowly.

    Only time spent waiting for the client counts.

    The application is told that the client has disconnected: `api.http.problems` answers that
    with 408. Slow heads and clients that do not read their answers never reach an application;
    docs/operations.md configures a proxy for them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        clock = get_running_loop().time
        left_s = GRACE_S
        complete = False

        async def receive_in_time() -> Message:
            nonlocal left_s, complete
            if complete:  # The next message is the end of the connection, which may take hours.
                return await receive()
            began = clock()
            try:
                async with timeout(left_s):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            left_s = min(GRACE_S, left_s - (clock() - began) + len(message.get("body", b"")) / SLOWEST_RATE)
            return message

        await self._app(scope, receive_in_time, send)
