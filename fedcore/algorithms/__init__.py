"""The catalogue of algorithms, one file per paper."""

from typing import Annotated

from pydantic import Field

from fedcore.algorithms.fedavg import FedAvg
from fedcore.algorithms.fedavgm import FedAvgM
from fedcore.algorithms.fedaware import FedAware
from fedcore.algorithms.feddyn import FedDyn
from fedcore.algorithms.fedlin import FedLin
from fedcore.algorithms.fedmgda import FedMgda
from fedcore.algorithms.fednova import FedNova
from fedcore.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedcore.algorithms.fedprox import FedProx
from fedcore.algorithms.fedsplit import FedSplit
from fedcore.algorithms.fedsvrg import FedSvrg
from fedcore.algorithms.scaffold import Scaffold
from fedcore.algorithms.vrlsgd import VrlSgd

AnyAlgorithm = Annotated[
    FedAvg
    | FedProx
    | FedNova
    | Scaffold
    | VrlSgd
    | FedAvgM
    | FedAdagrad
    | FedAdam
    | FedYogi
    | FedDyn
    | FedAware
    | FedMgda
    | FedLin
    | FedSplit
    | FedSvrg,
    Field(discriminator="kind"),
]

__all__ = [
    "AnyAlgorithm",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAware",
    "FedDyn",
    "FedLin",
    "FedMgda",
    "FedNova",
    "FedProx",
    "FedSplit",
    "FedSvrg",
    "FedYogi",
    "Scaffold",
    "VrlSgd",
]
