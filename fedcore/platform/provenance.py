"""Provenance: the code that accepted an experiment, and keys of the provenance of runs."""

from collections.abc import Mapping
from typing import Any

from fedcore.platform.status import Status
from fedcore.platform.version import commit, release
from fedcore.statistics.poor_runs import MeasureEnds, RunWarning, WarningKind, find_warning

ENGINE_CHOICE = "engine_choice"
"""Key of a run's provenance: its engine, and how it was chosen."""
MODEL_SHA256 = "model_sha256"
"""Key of a run's provenance: the digest of its final model."""
BEST_MODEL = "best_model"
"""Key of a run's provenance: its best evaluated round, with the measure and the digest of the model."""
DIVERGENCE = "divergence"
"""Key of a run's provenance: where the first number was not finite, of a run that diverged."""
CHANCE_ACCURACY = "chance_accuracy"
"""Key of a run's provenance: the share of the most frequent test label, where it is known."""
WARNING = "warning"
"""Key of a run's provenance: the `kind` and `detail` of a `RunWarning`, of a run that has one."""
PACKAGES = "packages"
"""Key of a run's provenance: versions and digests of the installed packages that it used, by name."""


def warning_entry(ends: Mapping[str, MeasureEnds], chance: float | None) -> dict[str, Any]:
    """Return the entry of a run's provenance that holds the warning of `find_warning`; empty without one."""
    found = find_warning(ends, chance)
    return {} if found is None else {WARNING: found._asdict()}


def run_warning(
    status: Status, diverged_round: int | None, provenance: Mapping[str, Any]
) -> RunWarning | None:
    """Return the reason to distrust a run that has succeeded; None if none is known."""
    if status is not Status.SUCCEEDED:
        return None
    if diverged_round is not None:
        place = provenance.get(DIVERGENCE)
        detail = f"diverged in round {diverged_round:,}" + (f": {place}" if place else "")
        return RunWarning(WarningKind.DIVERGED, detail)
    stored = provenance.get(WARNING)
    return None if stored is None else RunWarning(WarningKind(stored["kind"]), stored["detail"])


def code() -> dict[str, Any]:
    """Return the version of FedQ, for the provenance of an experiment."""
    return {"fedq": release(), "commit": commit()}


def best_model_key(model: str, provenance: Mapping[str, Any]) -> str | None:
    """Return where the best model of a run is stored whose final one is at `model`; None if none is kept.

    A model that is both is stored once.
    """
    best = provenance.get(BEST_MODEL)
    if best is None:
        return None
    return model if best["sha256"] == provenance[MODEL_SHA256] else best_key_beside(model)


def best_key_beside(model: str) -> str:
    """Return the storage key for the best model, if it is not the final one at `model`."""
    folder, slash, name = model.rpartition("/")
    return f"{folder}{slash}best-{name}"
