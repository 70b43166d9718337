"""The embedded stack: broker, API, workers and reconciler as children of one process, all state in
one folder.

    python -m workers.embedded.supervisor --home .fedq --port 8642

It stays in the foreground. SIGTERM or Ctrl-C ends all of it: workers finish the round at hand and
commit it first. If the supervisor itself is killed, its children end too, and the next start goes
on from the last commits.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.errors import ExtensionError, SchemaError, SettingsError
from fedcore.lazy import LazyModule
from fedcore.packages import find_installed
from fedcore.platform import local_credentials
from fedcore.platform.logging import configure
from fedcore.settings import Settings, settings
from fedcore.visible_text import visible
from workers.embedded import gpus
from workers.embedded.stack import Stack, StackError

if TYPE_CHECKING:
    from fedcore.spec import components
else:
    components = LazyModule("fedcore.spec.components")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stack until SIGTERM or SIGINT; returns the exit code."""
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    try:
        configure(settings(), "supervisor")
        if find_installed():  # else their families, all of specifications, would be loaded for nothing
            components.check_packages()
        options = _parser(settings()).parse_args(arguments)
        configured = settings().model_copy(update={"home": options.home.absolute()})
        names = gpus.devices(os.environ, gpus.listing()) if configured.device in {"auto", "cuda"} else []
        shared = gpus.assignment(names, options.workers, os.cpu_count() or 1)
        with Stack(configured, options.host, options.port, shared) as stack:
            stack.run(ended, when_ready=lambda: _announce(stack.url, configured.home, options))
    except (SettingsError, ExtensionError, SchemaError, StackError) as error:
        print(f"fedq: {visible(str(error))}", file=sys.stderr)
        return 1
    return 0


def _parser(settings: Settings) -> argparse.ArgumentParser:
    # `fedq up` explains them.
    parser = argparse.ArgumentParser(prog="python -m workers.embedded.supervisor")
    parser.add_argument("--home", type=Path, default=settings.home)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8642)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ready-file", type=Path)
    return parser


def _announce(url: str, home: Path, options: argparse.Namespace) -> None:
    # Browsers do not send the fragment. Output that is not a terminal may be a log that others read.
    link = f"{url}/sign-in#{local_credentials.load(home)}"
    if options.json:
        print(
            json.dumps({"url": url, "key_file": str(local_credentials.key_path(home)), "home": str(home)}),
            flush=True,
        )
    else:
        _say(url, home, link)
    if options.open:
        webbrowser.open(link)
    if options.ready_file is not None:
        partial = options.ready_file.with_name(f".{options.ready_file.name}.{time.monotonic_ns()}")
        partial.write_text(url)
        partial.replace(options.ready_file)


def _say(url: str, home: Path, link: str) -> None:
    print(
        f"FedQ is ready at {url}\nits API key, found automatically by `fedq` on this machine:"
        f" {local_credentials.key_path(home)}"
    )
    print(f"sign in: {link}" if sys.stdout.isatty() else f"sign in: {url}/sign-in", flush=True)


if __name__ == "__main__":
    sys.exit(main())
