"""Export to FedQ's own results file, which another FedQ can import."""

import gzip
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

    def __init__(self, experiment: schemas.Experiment, file: Path, _tracking_uri: str | None) -> None:
        """Raises ExportError if the experiment is unfinished."""
        if experiment.status not in ENDED:
            raise ExportError(
                f"experiment {experiment.id} is {experiment.status}: only finished experiments can be"
                " exported to a file"
            )
        self._experiment, self._file, self.where = experiment, file, str(file)
        self._runs: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Collect a run; `close` writes the whole file."""
        self._runs.append((run.model_dump(mode="json"), [row.model_dump(mode="json") for row in rows]))

    def close(self) -> None:
        """Write the file."""
        experiment = self._experiment.model_dump(mode="json", include=set(EXPERIMENT))
        partial = self._file.with_name(f".{self._file.name}.partial")
        with gzip.open(partial, "wb") if self._file.suffix == COMPRESSED else partial.open("wb") as file:
            write_results(file, experiment, self._runs, datetime.now(UTC))
        partial.replace(self._file)


def content_of(file: Path) -> bytes:
    """Read the uncompressed content of a results file, or that of a folder of `fedq run`.

    Raises UnreadableDataError.
    """
    try:
        if file.is_dir():
            return local_folder.archive(file)
        return gzip.decompress(file.read_bytes()) if file.suffix == COMPRESSED else file.read_bytes()
    except local_folder.FolderError as error:
        raise UnreadableDataError(str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableDataError(f"{file} cannot be read: {error}") from error
