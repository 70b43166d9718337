"""Sizes of a problem without loading it: clients and parameters; and whether a model fits the data."""

from fedcore.block import kind_of
from fedcore.data.datasets import DataShape, client_count, data_shape
from fedcore.data.exact import ExactProblem
from fedcore.models import MODELS, AnyModel
from fedcore.spec.problem import Problem


def misfit(model: AnyModel, shape: DataShape) -> str | None:
    """Reason why `model` cannot be trained on data of `shape`; None if it can."""
    if shape.symbols and not model.reads_symbols:
        fitting = " or ".join(kind_of(member) for member in MODELS if member.takes_symbols(shape))
        return f"{model.kind} requires numeric features, but these data are symbols: use {fitting}"
    return model.misfit(shape)


def population(problem: Problem) -> int:
    """Number of clients N."""
    return problem.partition.clients if problem.partition is not None else client_count(problem.dataset)


def dimension(problem: Problem) -> int:
    """Number of parameters D."""
    if isinstance(problem.dataset, ExactProblem):
        return problem.dataset.dim
    assert problem.model is not None
    return problem.model.parameter_count(data_shape(problem.dataset))
