"""`fedq up`: start a service on this machine."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedq.cli.extras import require_all
from fedq.cli.terminal import AsJson

Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for all state (default: FEDQ_HOME or .fedq).")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Port to listen on, or 0 for any free port (default: 8642)."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes (default: one per core).")
]
Open = Annotated[bool, typer.Option("--open", help="Open the web pages in a browser, signed in.")]


def up(
    home: Home = None,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    open_pages: Open = False,
    as_json: AsJson = False,
) -> None:
    """Start the complete service on this machine.

    Ctrl-C stops it; the next start continues where it stopped.
    """
    require_all()
    given = {"--home": home, "--host": host, "--port": port, "--workers": workers}
    options = (
        [f"{name}={value}" for name, value in given.items() if value is not None]
        + ["--open"] * open_pages
        + ["--json"] * as_json
    )
    os.execv(sys.executable, [sys.executable, "-m", "workers.embedded.supervisor", *options])  # noqa: S606 - our own command
