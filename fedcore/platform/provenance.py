"""Provenance: the code that accepted an experiment, and keys of the provenance of runs."""

from typing import Any

from fedcore.platform.version import commit, release

ENGINE_CHOICE = "engine_choice"
"""Key of a run's provenance: its engine, and how it was chosen."""
MODEL_SHA256 = "model_sha256"
"""Key of a run's provenance: the digest of its final model."""
PACKAGES = "packages"
"""Key of a run's provenance: versions and digests of the installed packages that it used, by name."""


def code() -> dict[str, Any]:
    """Return the version of FedQ, for the provenance of an experiment."""
    return {"fedq": release(), "commit": commit()}
