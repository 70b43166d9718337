"""`fedq backup` and `fedq restore`, for the service that the settings describe."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import BackupError
from fedcore.private import make_private_folder
from fedcore.settings import settings
from fedq.cli.failures import ExitCode, complain
from fedq.cli.terminal import AsJson, tell

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the backup.")]
Files = Annotated[
    bool,
    typer.Option("--files", help="Only checkpoints, models and data sets; back up the database separately."),
]


def backup(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Back up the database at FEDQ_DATABASE_URL and the files at FEDQ_STORAGE_URL.

    The service may keep running.
    """
    from fedcore.platform.backup import back_up, back_up_files

    folder.mkdir(parents=True, exist_ok=True)
    _do(lambda: (back_up_files if files else back_up)(settings().database, settings().storage, folder))
    tell(None, as_json=as_json, folder=folder)


def restore(folder: Folder, files: Files = False, as_json: AsJson = False) -> None:
    """Restore a backup to an empty database at FEDQ_DATABASE_URL and to the storage at
    FEDQ_STORAGE_URL.
    """
    from fedcore.platform import backup

    configured = settings()
    if configured.database_url is None and not files:
        make_private_folder(configured.home)
    _do(
        lambda: (
            backup.restore_files(configured.storage, folder)
            if files
            else backup.restore(configured.database, configured.storage, folder)
        )
    )
    tell(None, as_json=as_json, folder=folder)


def _do(act: Callable[[], None]) -> None:
    from fedcore.platform.store import UNAVAILABLE

    try:
        act()
    except BackupError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.REFUSED) from error
    except UNAVAILABLE as error:
        complain(f"the database is unavailable: {error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
