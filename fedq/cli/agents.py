"""`fedq mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from fedcore.lazy import LazyModule
from fedq.cli import connection

if TYPE_CHECKING:
    from fedq import mcp_server
else:
    mcp_server = LazyModule("fedq.mcp_server")


def mcp() -> None:
    """Serve the tools of FedQ to agents by the Model Context Protocol, on standard input and output.

    An agent's host starts it. Its tools are submit, plan, watch, arms, compare and figure.
    """
    anyio.run(mcp_server.serve, connection.chosen_key())
