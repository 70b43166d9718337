"""Export to FedQ's own results file, which another FedQ can import."""

import gzip
import json
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.lazy import LazyModule
from fedcore.platform.status import ENDED
from fedq import schemas
from fedq.client.errors import ExportError, UnreadableDataError
from fedq.results.documents import EXPERIMENT, write_results

if TYPE_CHECKING:
    from fedq.local import folder as local_folder
else:
    local_folder = LazyModule("fedq.local.folder")


COMPRESSED = ".gz"


class ArchiveRuns:
    """Writes one file; see Sink. Models and checkpoints are not included."""

    def __init__(self, experiment: schemas.Experiment, file: Path, code: bytes | None) -> None:
        """`code` is the archive of the code bundle. Raises ExportError if the experiment is unfinished."""
        if experiment.status not in ENDED:
            raise ExportError(
                f"experiment {experiment.id} is {experiment.status}: only finished experiments can be"
                " exported to a file"
            )
        self._experiment, self._file, self._code, self.where = experiment, file, code, str(file)
        self._runs: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Collect a run; `close` writes the whole file."""
        self._runs.append((run.model_dump(mode="json"), [row.model_dump(mode="json") for row in rows]))

    def close(self) -> None:
        """Write the file."""
        experiment = self._experiment.model_dump(mode="json", include=set(EXPERIMENT))
        partial = self._file.with_name(f".{self._file.name}.partial")
        with gzip.open(partial, "wb") if self._file.suffix == COMPRESSED else partial.open("wb") as file:
            write_results(file, experiment, self._runs, datetime.now(UTC), self._code)
        partial.replace(self._file)


def content_of(file: Path, *, code: bool = True) -> bytes:
    """Read the uncompressed content of a results file, or that of a folder of `fedq run`; unless `code`,
    without the code bundle in it.

    Raises UnreadableDataError.
    """
    try:
        if file.is_dir():
            content = local_folder.archive(file)
        else:
            content = gzip.decompress(file.read_bytes()) if file.suffix == COMPRESSED else file.read_bytes()
        return content if code else _without_code(content)
    except local_folder.FolderError as error:
        raise UnreadableDataError(str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableDataError(f"{file} cannot be read: {error}") from error


def _without_code(content: bytes) -> bytes:
    """A results file that has the same digest; what is none, as it is, for the service to refuse."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    if not isinstance(document, dict):
        return content
    return json.dumps({name: value for name, value in document.items() if name != "code"}).encode()
