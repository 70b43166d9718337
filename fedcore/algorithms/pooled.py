"""Training on the pooled data of all clients, for reference."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Models


class PooledModel(Models):
    """One model for the samples of all clients."""

    assures = frozenset()
    pooled = True
    travels = False


class PooledTraining(AlgorithmSpec):
    """One model is trained on the samples of all clients together, for reference; nothing is sent.

        x <- x - eta g_B(x)   for each of the sum_i tau_i mini-batches B of a round

    It takes the local steps of the clients of the round, one after another: as many, and on as many samples
    each, but drawn from the set of all clients without replacement, anew in each round. So a round costs what
    it costs FedAvg, and with full participation and E epochs it is E passes over all data. With `batch_size:
    full` each step is on the whole set, and costs more. Samples count alike, whatever the weights of clients;
    clients of exact problems count p_i. The local optimiser begins anew in each round, and a schedule that
    counts local steps counts all of them. On the simulated clock a round takes as long as that of `local`.
    """

    source = "the baseline of papers on federated learning, e.g. Zhao et al., 2018 (centralised training)"
    fixed_point = "the optimum"
    averages_models = True
    reference = True

    kind: Literal["pooled"] = "pooled"

    def models(self) -> Models:
        return PooledModel()
