"""FedAvg: local SGD and a weighted mean."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.control import ControlVariates
from fedcore.core import ClientRule


class FedAvg(AlgorithmSpec):
    """Each client takes tau_i SGD steps from x; the server adds the weighted mean of their changes.

        y_{i,k+1} = y_{i,k} - eta g_i(y_{i,k}),   x <- x + sum_i w_i (y_i - x)

    The weights are those of the participation scheme. With variance reduction, FedAvg-VR of Wang et
    al. (FedNova, IEEE TSP 2021, Table I), g_i becomes g_i + sum_j p_j d_j - d_i with d_i the mean
    raw gradient of client i's last round.
    """

    source = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS"
        " 2017, Algorithm 1"
    )

    kind: Literal["fedavg"] = "fedavg"
    variance_reduction: bool = False
    """Correct each local gradient by the difference between the client's last gradient and the
    mean.
    """

    def rule(self) -> ClientRule:
        return ControlVariates(mean="share") if self.variance_reduction else ClientRule()
