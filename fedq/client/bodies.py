"""Request bodies: specifications, and uploads of data sets."""

import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from fedcore.lazy import LazyModule
from fedq.client.errors import UnreadableDataError, UnreadableSpecificationError

if TYPE_CHECKING:
    from fedcore import presets
    from fedcore.spec import components, experiment, yaml_documents
else:
    presets = LazyModule("fedcore.presets")
    components = LazyModule("fedcore.spec.components")
    experiment = LazyModule("fedcore.spec.experiment")
    yaml_documents = LazyModule("fedcore.spec.yaml_documents")

SUFFIXES = frozenset({".json", ".yaml", ".yml"})

Specification = Mapping[str, Any] | BaseModel | Path | str
"""A document, an ExperimentSpec, a JSON or YAML file (a path, or a string with such a suffix), or
the name of a preset.
"""


def body_of(specification: Specification, overrides: Mapping[str, Any], code: str | None = None) -> bytes:
    """Request body: the document merged with `overrides`, or the name of a preset with them, and the
    digest of a code bundle. Raises UnreadableSpecificationError.
    """
    changes = dict(overrides) if code is None else {**overrides, "code": code}
    if isinstance(specification, str) and Path(specification).suffix.lower() not in SUFFIXES:
        return _encode({"preset": specification, "overrides": changes})
    return _encode(presets.override(_document(specification, has_code=code is not None), changes))


def parse(text: str, origin: str) -> dict[str, Any]:
    """Parse a JSON or YAML document. `origin` names it in the message of
    UnreadableSpecificationError.
    """
    try:
        # JSON is YAML, so one reader does.
        document = yaml_documents.load(text)
    except ValueError as error:
        raise UnreadableSpecificationError(f"{origin} is not valid JSON or YAML: {error}") from error
    if not isinstance(document, dict):
        raise UnreadableSpecificationError(f"{origin} must contain a mapping, not {type(document).__name__}")
    return document


def _document(specification: Specification, *, has_code: bool) -> dict[str, Any]:
    match specification:
        case BaseModel():
            if isinstance(specification, experiment.ExperimentSpec) and not has_code:
                for family, name, module, *_ in components.code_of_objects(specification):
                    raise UnreadableSpecificationError(
                        f"{name} of {module}, one of the {family}, is a class of this process, which the"
                        " service does not have: give the folder with its code (`code=`), install it as a"
                        " package on the service and its workers, or run it here with fedq.run"
                    )
            document = specification.model_dump(mode="json")
            if (
                isinstance(specification, experiment.ExperimentSpec)
                and "every" not in specification.evaluation.model_fields_set
            ):
                del document["evaluation"]["every"]  # the service chooses an interval that is not given
            return document
        case str() | Path():
            return parse(_read(Path(specification)), str(specification))
        case _:
            return dict(specification)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSpecificationError(f"{file} cannot be read: {error}") from error


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        # Infinities are passed on, for the service says where they stand.
        return to_json(body, inf_nan_mode="constants", fallback=_plain)
    except PydanticSerializationError as error:
        raise UnreadableSpecificationError(
            f"the specification is not serialisable as JSON: {error}"
        ) from error


def _plain(value: Any) -> Any:
    """Convert a NumPy array or number to lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} of type {type(value).__name__}")


PIECE_BYTES = 1 << 20
UPLOAD_TIMEOUT_S = 600.0
"""The service answers after it has validated the whole file."""

Upload = Mapping[str, Any] | Path | str
"""An NPZ or Parquet file, or the arrays `features`, `label` and, optionally, `client` and `test`.
"""


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """File read in chunks, from the start for each attempt of a request."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        with self._file.open("rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with await anyio.open_file(self._file, "rb") as opened:
            while piece := await opened.read(PIECE_BYTES):
                yield piece


@contextmanager
def file_of(data: Upload) -> Iterator[Path]:
    """Yield the file to send, which may exist only inside the block. Raises UnreadableDataError."""
    if isinstance(data, Mapping):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "arrays.npz"
            _write(data, file)
            yield file
    elif Path(data).is_file():
        yield Path(data)
    else:
        raise UnreadableDataError(f"file not found: {data}")


def _write(arrays: Mapping[str, Any], file: Path) -> None:
    import numpy as np  # heavy; callers with arrays have it loaded

    try:
        # As np.savez does, which refuses objects only from NumPy 2.2 on.
        with zipfile.ZipFile(file, "w") as archive:
            for name, values in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
    except ValueError as error:
        raise UnreadableDataError(
            f"cannot write the arrays: {error}; they must contain numbers, booleans or strings"
        ) from error


def dataset_name(data: Upload) -> str:
    """Name of a file. Raises UnreadableDataError for arrays, which have none."""
    if isinstance(data, Mapping):
        raise UnreadableDataError("give the arrays a `name`")
    return Path(data).name
