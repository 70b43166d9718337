"""Files of pretrained networks that specifications name by their digest: weights, configurations and
tokenizers.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedcore.errors import DataUnavailableError

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", examples=[f"sha256:{'7ec566d5' * 8}"])]
"""SHA-256 of a file."""


def file_name(digest: str, suffix: str) -> str:
    """Name of the file with this digest in its folder."""
    return f"{digest.removeprefix('sha256:')}.{suffix}"


def file_of_digest(digest: str, folders: Sequence[Path], suffix: str) -> Path:
    """The file with the `digest` from the first of `folders` that has it, as <digest>.`suffix`.

    Raises DataUnavailableError.
    """
    wanted = digest.removeprefix("sha256:")
    places = [folder / file_name(digest, suffix) for folder in folders]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataUnavailableError(
            f"{folders[-1].name} {digest} are not on this machine: upload the file with this SHA-256 by"
            f" `fedq weights add` before the submission, or put the {suffix} file at {places[-1]}"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise DataUnavailableError(
            f"{path} has the SHA-256 {found}: it was changed; put the original in its place"
        )
    return path
