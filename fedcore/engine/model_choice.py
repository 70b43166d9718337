"""Which of several models of the server each client uses: the one with the lowest loss on its data; and
full gradients of clients at the models that they use.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.assignment import Ids
from fedcore.problems import TrainingProblem


class ChosenModels(NamedTuple):
    """The models that clients use."""

    x: Tensor
    """[D] if the server has only one, else [M, D]."""
    numbers: Ids | None
    """[M] which it is, from 0; None if there is only one."""


def choose_models(problem: TrainingProblem, x: Tensor, clients: Ids) -> ChosenModels:
    """Choose for `clients` [M] among the models x [k, D] of the server; x [D] is its only one."""
    if x.dim() == 1:
        return ChosenModels(x, None)
    numbers = np.stack([problem.client_losses(model, clients) for model in x]).argmin(0)
    return ChosenModels(x[torch.from_numpy(numbers).to(x.device)], numbers)


def lowest_losses(problem: TrainingProblem, x: Tensor, clients: Ids) -> NDArray[np.float64]:
    """[M] the loss of each of `clients` [M] at the model that it chooses of x [D], or [k, D]."""
    losses = [problem.client_losses(model, clients) for model in ([x] if x.dim() == 1 else x)]
    lowest: NDArray[np.float64] = np.min(losses, axis=0)
    return lowest


def full_gradients(problem: TrainingProblem, models: Tensor, clients: Ids) -> Tensor:
    """[M, D] full gradients of `clients` [M] at one model [D], or of each client at its own in
    `models` [M, D].
    """
    if models.dim() == 1:
        return problem.client_gradients(models, clients)
    rows = range(len(clients))
    return torch.cat([problem.client_gradients(models[row], clients[row : row + 1]) for row in rows])
