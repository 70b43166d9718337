"""Training on the pooled data of all clients, for reference."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Models


class PooledModel(Models):
    """One model for the samples of all clients."""

    assures = frozenset()
    pooled = True


class PooledTraining(AlgorithmSpec):
    """The samples of all clients are one set, on which one model is trained, for reference; nothing is sent.

        x <- x - eta g_B(x),   for each of the sum_i tau_i mini-batches B of a round

    These are the steps that the clients of the round would take, one after another: as many, of as many samples
    each, so that a round costs as much as one of FedAvg. Mini-batches are drawn without replacement from the
    whole set, anew in every round; with `batch_size: full` each is the whole set. With full participation and E
    epochs a round is E passes over all data. Weights of clients count for nothing: each sample counts the same,
    and on exact problems each client its p_i. The local optimiser begins every round anew, as at clients, and a
    schedule that counts local steps counts all of them. On the simulated clock a round lasts as long as the
    training of its clients, who send nothing.
    """

    source = "the baseline of papers on federated learning, e.g. Zhao et al., 2018 (centralised training)"
    fixed_point = "the optimum"
    averages_models = True
    reference = True

    kind: Literal["pooled"] = "pooled"

    def models(self) -> Models:
        return PooledModel()
