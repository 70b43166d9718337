"""Models by import path run code on a worker, so only those that the operator allows are taken."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fedcore.errors import SpecificationError
from fedcore.spec import sweep
from fedcore.spec.experiment import ExperimentSpec
from fedcore.spec.model import Imported

POINTER = "/problem/model/path"


def check_allowed_models(spec: ExperimentSpec, allowed: Sequence[str]) -> None:
    """Raise SpecificationError if the model of some arm has an import path that none of the
    patterns `allowed` covers.
    """
    model = spec.problem.model
    if not isinstance(model, Imported) and not any(
        path.partition(".")[0] == "problem" for path in sweep.paths(spec.sweep)
    ):
        return
    for model in {arm.spec.problem.model for arm in spec.arms()}:
        if isinstance(model, Imported):
            check_allowed_model(model, allowed)


def check_allowed_model(model: Imported, allowed: Sequence[str]) -> None:
    """Raise SpecificationError if none of the patterns `allowed` covers the import path of
    `model`.
    """
    if not allowed:
        raise SpecificationError(
            POINTER,
            "models by import path are disabled; the operator can enable them with FEDQ_MODELS_ALLOWED",
        )
    if not any(fnmatchcase(model.path, pattern) for pattern in allowed):
        raise SpecificationError(
            POINTER, f"{model.path} does not match FEDQ_MODELS_ALLOWED: {', '.join(allowed)}"
        )
