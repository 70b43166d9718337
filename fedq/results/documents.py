"""Results files, which any FedQ service imports."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import BufferedIOBase
from typing import Any

from fedq.schemas import ImportedExperiment, ImportedRun, RoundRow

EXPERIMENT = tuple(ImportedExperiment.model_fields)
"""Fields of the experiment in a results file."""
RUN = tuple(name for name in ImportedRun.model_fields if name != "rows")
"""Fields of a run in a results file, besides its rows."""

Row = Mapping[str, Any]


def write_results(
    file: BufferedIOBase,
    experiment: Row,
    runs: Iterable[tuple[Row, Sequence[Row]]],
    exported_at: datetime,
    code: bytes | None = None,
) -> None:
    """Write a results file with its digest, run by run; `runs` are runs and their rows, and `code` is the
    archive of the code bundle.
    """
    digest = hashlib.sha256()

    def write(text: str) -> None:
        content = text.encode()
        digest.update(content)
        file.write(content)

    head = {"format": "fedq-results", "version": 1, "exported_at": exported_at.isoformat()}
    write(f'{_json(head | {"experiment": {name: experiment[name] for name in EXPERIMENT}})[:-1]},"runs":[')
    for number, (run, rows) in enumerate(runs):
        document = {name: run[name] for name in RUN} | {"rows": _columns(rows)}
        write(("," if number else "") + _json(document))
    write("]")
    # As `results_sha256` has it: of the file as it would be without its digest.
    digest.update(b"}")
    file.write(f',"digest":"{digest.hexdigest()}"'.encode())
    if code is not None:
        file.write(b',"code":"' + b64encode(code) + b'"')
    file.write(b"}")


def _json(document: Row) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, default=_moment)


def _moment(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} has no place in a results file")


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    names = [name for name in RoundRow.model_fields if name not in ("round", "extra")]
    others = dict.fromkeys(name for row in rows for name in row["extra"])
    extra = {name: [row["extra"].get(name) for row in rows] for name in others}
    return {name: [row[name] for row in rows] for name in names} | {"extra": extra}
