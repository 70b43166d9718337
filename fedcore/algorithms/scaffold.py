"""SCAFFOLD: control variates against client drift."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.control import ControlVariates
from fedcore.core import ClientRule


class Scaffold(AlgorithmSpec):
    """Each local step is corrected by the difference of the population's and the client's control
    variate.

        y <- y - eta (g_i(y) - c_i + c)
        option 1: c_i <- grad F_i(x)       option 2: c_i <- c_i - c + (x - y) / (tau_i eta)
        x <- x + server_lr mean_S(y_i - x),   c <- c + (1/N) sum_S (change of c_i)

    c and c_i start at zero; clients outside the cohort keep theirs, so c is always the mean of all
    c_i. With local momentum, tau_i becomes ||a_i||_1. The cohort is averaged uniformly unless
    `participation.weighting` says otherwise.
    """

    source = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,"
        " Algorithm 1"
    )
    weighting = "uniform"

    kind: Literal["scaffold"] = "scaffold"
    option: Literal[1, 2] = 2
    """1: an extra full gradient at x; 2: reuse the gradients of the local steps."""

    def rule(self) -> ClientRule:
        return ControlVariates(estimate="anchor" if self.option == 1 else "steps")
