"""Files that specifications name by their digest: weights, configurations and tokenizers."""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedcore.errors import DataUnavailableError

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""SHA-256 of a file."""


def file_of_digest(digest: str, folder: Path, suffix: str) -> Path:
    """The file `folder`/<digest>.`suffix`, whose content has the `digest`.

    Raises DataUnavailableError.
    """
    wanted = digest.removeprefix("sha256:")
    path = folder / f"{wanted}.{suffix}"
    if not path.is_file():
        raise DataUnavailableError(
            f"{folder.name} {digest} are not on this machine: put the {suffix} file with this SHA-256 at"
            f" {path}"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise DataUnavailableError(
            f"{path} has the SHA-256 {found}: it was changed; put the original in its place"
        )
    return path
