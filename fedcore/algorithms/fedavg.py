"""FedAvg: local SGD and a weighted mean."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec


class FedAvg(AlgorithmSpec):
    """Each client takes tau_i SGD steps from x; the server adds the weighted mean of their changes.

        y_{i,k+1} = y_{i,k} - eta g_i(y_{i,k}),   x <- x + sum_i w_i (y_i - x)

    The weights are those of the participation scheme.
    """

    source = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1"

    kind: Literal["fedavg"] = "fedavg"
