"""`fedq up`, `demo`, `mcp`, `migrate`, `backup`, `restore`, `queue`, `workers`, `presets` and `catalogue`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.lazy import yaml
from fedcore.platform.private_files import make_private_folder
from fedq.cli import connection, views
from fedq.cli.connection import connect
from fedq.cli.experiments import Assignments, overrides
from fedq.cli.lazy import catalogues, clients, configuration, validation
from fedq.cli.terminal import (
    AsJson,
    conclude,
    echo,
    echo_file,
    print_json,
    require_all,
    show,
    stderr,
    tell,
    using_database,
)
from fedq.cli.views import comparison

if TYPE_CHECKING:
    from fedq.schemas import Catalog, CatalogBlock

Home = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="Folder for all state (default: FEDQ_HOME or .fedq)."),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Port to listen on, or 0 for any free port (default: 8642)."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of worker processes (default: one per GPU; without GPUs, per core)."),
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


PRESET = "demo"
MOST_WORKERS = 4
"""More would take longer to start than they save."""

FigureFolder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the figures.")]


def demo(
    output: FigureFolder = Path("demo"), assignments: Assignments = None, as_json: AsJson = False
) -> None:
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
        clients.Client(url, key) as client,
    ):
        experiment = client.submit(PRESET, changes)
        stderr().print(experiment.description)
        ended = client.wait(experiment.id, progress=True)
        results = client.results(experiment.id)
        show(results, comparison, as_json=as_json)
        output.mkdir(parents=True, exist_ok=True)
        pictures = [client.save_figure(experiment.id, output / f"{PRESET}.{form}") for form in ("svg", "png")]
        if not as_json:
            echo(f"Curves written to {' and '.join(map(str, pictures))}")
    conclude(ended)


def mcp() -> None:
    """Serve the tools of FedQ to agents by the Model Context Protocol, on standard input and output.

    An agent's host starts it. Its tools are submit, plan, watch, arms, compare and figure.
    """
    import anyio

    from fedq import mcp_server

    anyio.run(mcp_server.serve, connection.chosen_key())


def migrate(as_json: AsJson = False) -> None:
    """Upgrade the database at FEDQ_DATABASE_URL to the current schema. `fedq up` does this
    automatically.
    """
    from fedcore.platform.store import upgrade

    with using_database():
        upgrade(configuration.settings().database)
    tell(None, as_json=as_json, migrated=True)


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the backup.")]
Files = Annotated[
    bool,
    typer.Option("--files", help="Only checkpoints, models and data sets; back up the database separately."),
]


def backup(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Back up the database at FEDQ_DATABASE_URL and the files at FEDQ_STORAGE_URL.

    The service may keep running.
    """
    from fedcore.platform import backup, storage
    from fedcore.platform.store import check_schema

    configured = configuration.settings()
    storage.require_storage(configured.storage)
    with using_database():
        # What another version has stored would be missing.
        check_schema(configured.database)
    folder.mkdir(parents=True, exist_ok=True)
    with using_database():
        (backup.back_up_files if files else backup.back_up)(configured.database, configured.storage, folder)
    tell(None, as_json=as_json, folder=folder)


def restore(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Restore a backup to an empty database at FEDQ_DATABASE_URL and to the storage at
    FEDQ_STORAGE_URL.
    """
    from fedcore.platform import backup, storage

    configured = configuration.settings()
    storage.require_storage(configured.storage)
    if configured.database_url is None and not files:
        make_private_folder(configured.home)
    with using_database():
        if files:
            backup.restore_files(configured.storage, folder)
        else:
            backup.restore(configured.database, configured.storage, folder)
    tell(None, as_json=as_json, folder=folder)


def queue(as_json: AsJson = False) -> None:
    """Show the number of queued and running runs of each queue, and runs that several workers train."""
    with connect() as client:
        found = client.queues()
        show(found.items, lambda items: views.queues(items, found.groups), as_json=as_json)


def list_workers(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers and the runs they execute."""
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        show(client.workers(), views.workers, as_json=as_json)


PresetName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Print the specification of this preset as YAML.",
        autocompletion=connection.complete_presets,
    ),
]
BlockPath = Annotated[
    str | None,
    typer.Argument(
        metavar="[BLOCK]",
        help="Show the kinds of one block, e.g. problem.dataset.",
        autocompletion=connection.complete_blocks,
    ),
]


def presets(name: PresetName = None, as_json: AsJson = False) -> None:
    """List the presets, or print one as YAML."""
    with connect() as client:
        if name is None:
            show(client.presets(), views.presets, as_json=as_json)
            return
        preset = client.preset(name)
    if as_json:
        print_json(preset)
    else:
        text = yaml.safe_dump(preset.specification, sort_keys=False, allow_unicode=True)
        echo_file(text.encode())


def catalogue(block: BlockPath = None, as_json: AsJson = False) -> None:
    """List all algorithms, data sets, models and other components of a specification that the
    service has, or if none answers, that are installed here.
    """
    try:
        with connect() as client:
            catalog = client.catalogue()
    except clients.ServiceUnreachableError:
        stderr().print("no service answers: these components are installed here")
        catalog = catalogues.build_catalog()
    if block is not None:
        show(_block(catalog, block), views.kinds, as_json=as_json)
    elif as_json:
        print_json(catalog)
    else:
        show(catalog.blocks, views.blocks, as_json=False)


def _block(catalog: Catalog, path: str) -> CatalogBlock:
    blocks = {block.path: block for block in catalog.blocks}
    if path not in blocks:
        raise typer.BadParameter(validation.not_among(path, list(blocks)), param_hint="BLOCK")
    return blocks[path]
