"""The catalogue of algorithms: one explicit union, one file per paper."""

from typing import Annotated

from pydantic import Field

from fedcore.algorithms.fedavg import FedAvg
from fedcore.algorithms.fedavgm import FedAvgM
from fedcore.algorithms.fednova import FedNova
from fedcore.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedcore.algorithms.fedprox import FedProx
from fedcore.algorithms.scaffold import Scaffold

AnyAlgorithm = Annotated[
    FedAvg | FedProx | FedNova | Scaffold | FedAvgM | FedAdagrad | FedAdam | FedYogi,
    Field(discriminator="kind"),
]

__all__ = ["AnyAlgorithm", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedNova", "FedProx", "FedYogi", "Scaffold"]
