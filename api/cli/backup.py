"""`fedq backup` and `fedq restore`: of the service whose settings these are."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from api.cli.failures import ExitCode, complain
from api.cli.terminal import AsJson, tell
from fedcore.errors import BackupError
from fedcore.private import make_private_folder
from fedcore.settings import settings

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]
Files = Annotated[bool, typer.Option("--files", help="Only checkpoints, models and data sets: the database is dumped by other means.")]


def backup(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Copy database and files of the service at FEDQ_DATABASE_URL and FEDQ_STORAGE_URL, which may go on meanwhile."""
    from fedcore.backup import back_up, back_up_files

    folder.mkdir(parents=True, exist_ok=True)
    _do(lambda: (back_up_files if files else back_up)(settings().database, settings().storage, folder))
    tell(None, as_json=as_json, folder=folder)


def restore(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Put a backup into an empty database at FEDQ_DATABASE_URL, and its files where FEDQ_STORAGE_URL leads."""
    from fedcore import backup

    configured = settings()
    if configured.database_url is None and not files:
        make_private_folder(configured.home)
    _do(
        lambda: (
            backup.restore_files(configured.storage, folder) if files else backup.restore(configured.database, configured.storage, folder)
        )
    )
    tell(None, as_json=as_json, folder=folder)


def _do(act: Callable[[], None]) -> None:
    from fedcore.store import UNAVAILABLE

    try:
        act()
    except BackupError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.REFUSED) from error
    except UNAVAILABLE as error:
        complain(f"the database does not answer: {error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
