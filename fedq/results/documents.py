"""Results files, which any FedQ service imports."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from fedcore.spec.digest import results_sha256
from fedq.schemas import RoundRow

RUN = (
    "id",
    "arm",
    "seed",
    "status",
    "diverged_round",
    "stop_reason",
    "error",
    "started_at",
    "finished_at",
    "provenance",
)
"""Fields of a run in a results file, besides its rows."""

Row = Mapping[str, Any]


def results_document(
    experiment: Mapping[str, Any],
    runs: Iterable[tuple[Mapping[str, Any], Sequence[Row]]],
    exported_at: datetime,
) -> dict[str, Any]:
    """Return the content of a results file, with its digest; `runs` are runs and their rows."""
    document = {
        "format": "fedq-results",
        "version": 1,
        "exported_at": exported_at.isoformat(),
        "experiment": dict(experiment),
        "runs": [{name: run[name] for name in RUN} | {"rows": _columns(rows)} for run, rows in runs],
    }
    return document | {"digest": results_sha256(document)}


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    names = [name for name in RoundRow.model_fields if name not in ("round", "extra")]
    others = dict.fromkeys(name for row in rows for name in row["extra"])
    extra = {name: [row["extra"].get(name) for row in rows] for name in others}
    return {name: [row[name] for row in rows] for name in names} | {"extra": extra}
