"""Reproductions: an experiment that repeats another, run by run, and where the rows of the two
differ.
"""

from __future__ import annotations

import json
import re
from itertools import zip_longest
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.packages import Package, encode_packages, installed_packages
from fedcore.platform.provenance import ENGINE_CHOICE, PACKAGES
from fedcore.platform.store import bundles, curves, runs
from fedcore.platform.store.blocks import StoredRound
from fedcore.platform.store.tables import Document, ExperimentRecord, RunRecord
from fedcore.simulation.report import COLUMNS

COMPARED = tuple(column for column in COLUMNS if column != "seconds")
"""Columns that are the same whenever a run is repeated."""
_NAME, _VERSION = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII), re.compile(r"\d[\w.+!]*", re.ASCII)
PAGE_ROWS = 1_000
"""Rows compared at a time."""


class Pair(NamedTuple):
    """A run, and the one that it repeats: of the same arm, with the same seed."""

    original: RunRecord
    here: RunRecord


class RowDifference(NamedTuple):
    """Where two runs differ first."""

    round: int
    measure: str
    """Name of the measure; for a list, with the place of the first entry that differs, as `x[3]`."""
    original: float | None
    here: float | None


def engine_choices(session: Session, original_id: str) -> dict[tuple[int, int], Document]:
    """Return the provenance that makes the runs of a reproduction use the engines of the original's,
    by arm and seed.
    """
    return {
        (run.arm, run.seed): {ENGINE_CHOICE: run.provenance[ENGINE_CHOICE]}
        for run in runs.of_experiment(session, original_id)
        if ENGINE_CHOICE in run.provenance
    }


def packages(session: Session, original_id: str) -> dict[tuple[int, int], str | None]:
    """Return the values of `RunRecord.packages`, by arm and seed: a reproduction needs the same
    versions.
    """
    return {(run.arm, run.seed): run.packages for run in runs.of_experiment(session, original_id)}


def missing(session: Session, record: ExperimentRecord) -> list[str]:
    """Installed packages that this process lacks to run an experiment again, and the code bundle, if the
    experiment does not use one and its owner has none; each with how to bring it.
    """
    found = missing_packages(session, record.id)
    code = record.spec.get("code")
    if code and not bundles.is_at_hand(session, record.id, code["digest"], record.owner):
        found.append(bundles.explain_absence(code["digest"]))
    return found


def missing_packages(session: Session, experiment_id: str) -> list[str]:
    """The packages of an experiment that are not installed in this process, each with how to install it."""
    query = select(RunRecord.packages).where(
        RunRecord.experiment_id == experiment_id, RunRecord.packages.is_not(None)
    )
    needed = {package for names in session.scalars(query.distinct()) for package in json.loads(names or "[]")}
    present = {package.name for package in installed_packages()}
    return [
        _explain_package(package) for package in sorted(needed) if package.rpartition(" ")[0] not in present
    ]


def _explain_package(package: str) -> str:
    # A results file may contain anything.
    name, _, version = package.rpartition(" ")
    plain = _NAME.fullmatch(name) and _VERSION.fullmatch(version)
    command = f" (`pip install {name}=={version}`)" if plain else ""
    return (
        f"there is no package {package}: the operator installs it with the service and its workers{command}"
    )


def packages_in(provenance: Document) -> str | None:
    """The value of `RunRecord.packages` of a run that was executed elsewhere."""
    used = provenance.get(PACKAGES)
    # A results file may contain anything.
    entries = used.items() if isinstance(used, dict) else ()
    return encode_packages(
        Package(name, str(about.get("version"))) for name, about in entries if isinstance(about, dict)
    )


def pairs(session: Session, experiment_id: str, original_id: str) -> list[Pair]:
    """The runs of an experiment that the original has, too, in order."""
    originals = {(run.arm, run.seed): run for run in runs.of_experiment(session, original_id)}
    here = runs.of_experiment(session, experiment_id)
    return [Pair(originals[run.arm, run.seed], run) for run in here if (run.arm, run.seed) in originals]


def first_difference(session: Session, pair: Pair, page_rows: int = PAGE_ROWS) -> RowDifference | None:
    """The first measure of the first round that both have and that differs in a bit.

    None where none does. Wall-clock times may.
    """
    after = 0
    while True:
        rows = [curves.after(session, run.id, after, page_rows) for run in pair]
        for there, here in zip(*rows, strict=False):
            unlike = _unlike(_measures(there), _measures(here))
            if unlike is not None:
                return RowDifference(here.round, *unlike)
        if min(map(len, rows)) < page_rows:
            return None
        after += page_rows


def _measures(row: StoredRound) -> Document:
    return {**{name: getattr(row, name) for name in COMPARED}, **row.extra}


def _unlike(there: Document, here: Document) -> tuple[str, float | None, float | None] | None:
    """The first measure that differs, with both values; one that is absent is None."""
    measure = next(
        (name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)), None
    )
    if measure is None:
        return None
    original, value = there.get(measure), here.get(measure)
    while isinstance(original, list) and isinstance(value, list):
        entries = enumerate(zip_longest(original, value))
        place, (original, value) = next((place, pair) for place, pair in entries if pair[0] != pair[1])
        measure = f"{measure}[{place}]"
    return measure, _number(original), _number(value)


def _number(value: Any) -> float | None:
    return None if isinstance(value, list) else value
