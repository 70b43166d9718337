"""Provenance: the code that accepted an experiment, and keys of the provenance of runs."""

from collections.abc import Mapping
from typing import Any

from fedcore.platform.version import commit, release

ENGINE_CHOICE = "engine_choice"
"""Key of a run's provenance: its engine, and how it was chosen."""
MODEL_SHA256 = "model_sha256"
"""Key of a run's provenance: the digest of its final model."""
BEST_MODEL = "best_model"
"""Key of a run's provenance: its best evaluated round, with the measure and the digest of the model."""
DIVERGENCE = "divergence"
"""Key of a run's provenance: where the first number was not finite, of a run that diverged."""
PACKAGES = "packages"
"""Key of a run's provenance: versions and digests of the installed packages that it used, by name."""


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
