"""Headers that keep browsers from doing with an answer what it is not for.

Requests carry their key in a header, or in a cookie that foreign pages cannot make a browser send
to any effect (`api/http/authentication.py`).
Pages that show what users have written come with a policy of their own (`api/web/rendering.py`),
which allows no script in the page.
"""

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DATA_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""For answers that are no pages; a picture brings its own style."""
DOCUMENTATION_POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""For the pages of documentation: scripts only from here, and those in the page itself that it was
made with.
"""
_INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


class SecurityHeadersMiddleware:
    """Middleware that adds these headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page: Message | None = None

        async def shield(message: Message) -> None:
            nonlocal page
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
                if (
                    headers.get("content-type", "").startswith("text/html")
                    and "content-security-policy" not in headers
                ):
                    page = message
                    return
                headers.setdefault("Content-Security-Policy", DATA_POLICY)
            elif page is not None:
                MutableHeaders(scope=page)["Content-Security-Policy"] = documentation_policy(
                    message.get("body", b"")
                )
                await send(page)
                page = None
            await send(message)

        await self._app(scope, receive, shield)


def documentation_policy(body: bytes) -> str:
    """Return the Content-Security-Policy of a page of documentation.

    Such pages are sent in one piece and contain nothing that a user has written.
    """
    digests = (
        base64.b64encode(hashlib.sha256(script).digest()).decode()
        for script in _INLINE.findall(body)
        if script.strip()
    )
    return DOCUMENTATION_POLICY.format(hashes="".join(f" 'sha256-{digest}'" for digest in digests))
