"""How unequally a model serves the clients: spread and worst decile of their accuracies."""

from math import ceil

import numpy as np
from torch import Tensor

from fedcore.measures.base import Measured
from fedcore.problems import Problem


def fairness(problem: Problem, x: Tensor) -> Measured:
    """Spread and worst decile over clients of the accuracy at x [D].

    a_i is measured on client i's own training samples, and every client counts the same:

        client_accuracy_std           sqrt((1/N) sum_i (a_i - a)^2), a their mean
        client_accuracy_worst_decile  mean of the ceil(N/10) smallest

    as in Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Section 4. A problem
    without classes has neither.
    """
    accuracies = problem.client_accuracies(x)
    if accuracies is None:
        return {}
    accuracies = np.sort(accuracies)
    return {
        "client_accuracy_std": float(accuracies.std()),
        "client_accuracy_worst_decile": float(accuracies[: ceil(len(accuracies) / 10)].mean()),
    }
