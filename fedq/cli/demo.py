"""`fedq demo`: a demonstration of the whole service in less than a minute."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from fedq.cli.assignments import overrides
from fedq.cli.comparison import comparison
from fedq.cli.extras import require_all
from fedq.cli.following import conclude
from fedq.cli.submission import Assignments
from fedq.cli.terminal import AsJson, show, stderr
from fedq.client import Client

PRESET = "demo"
MOST_WORKERS = 4
"""More would take longer to start than they save."""

Folder = Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the figures.")]


def demo(output: Folder = Path("demo"), assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Compare four algorithms on real data, as a table and figures.

    Starts a temporary service and stops it afterwards.
    """
    require_all()
    from fedq.embedded import embedded_service

    changes = overrides(assignments or [])
    # Ends like Ctrl-C, so that everything started here is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stderr().print("Starting a service in a temporary folder ...")
    with (
        embedded_service(workers=min(os.cpu_count() or 1, MOST_WORKERS)) as (url, key),
        Client(url, key) as client,
    ):
        experiment = client.submit(PRESET, changes)
        stderr().print(experiment.description, markup=False)
        ended = client.wait(experiment.id, progress=True)
        results = client.results(experiment.id)
        show(results, comparison, as_json=as_json)
        output.mkdir(parents=True, exist_ok=True)
        pictures = [client.save_figure(experiment.id, output / f"{PRESET}.{form}") for form in ("svg", "png")]
        if not as_json:
            typer.echo(f"Curves written to {' and '.join(map(str, pictures))}")
    conclude(ended)
