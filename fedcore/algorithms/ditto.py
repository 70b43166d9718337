"""Ditto: each client trains a personal model beside the global one, held near it by a proximal term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import NonNegative
from fedcore.core import ClientContext, Models, Vectors
from fedcore.lazy import torch
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SecondModel(Models):
    """Training of w from x, and beside it of a second model v [..., D] of the client, in the memory
    `personal` [..., D]. y is (w, v) [..., 2, D].
    """

    assures = Models.assures  # v stays with the client, and w takes one gradient in a step
    memory: ClassVar[tuple[str, ...]] = ("personal",)
    trained = 2
    plain = False

    def start(self, x: Tensor) -> Vectors:
        return {"personal": x}

    def starting_point(self, x: Tensor, memory: Vectors) -> Tensor:
        own = memory["personal"]
        return torch.stack([x.expand_as(own), own], -2)

    def remember(self, y: Tensor, context: ClientContext) -> Vectors:
        return {"personal": y[..., 1, :]}

    def personal_model(self, x: Tensor, memory: Vectors) -> Tensor:
        return memory["personal"]


@dataclass(frozen=True)
class PulledToGlobal(SecondModel):
    """v descends along g_i(v) + lam (v - x)."""

    assures = Models.assures
    plain = False

    lam: float = 0.0

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        x, v = context.x[..., :1, :], y[..., 1:, :]
        return grad + self.lam * (v - x)


class Ditto(AlgorithmSpec):
    """FedAvg, and beside it a personal model v_i of each client, on the same mini-batches.

        w <- w - eta g_i(w) from w = x,   v_i <- v_i - eta (g_i(v_i) + lam (v_i - x))

    x is the model as the round begins. v_i starts at the first model and stays with client i; FedAvg
    is not affected by it. lam = 0 is local training, lam -> infinity the global model, where the
    step size must be below 2 / lam. A round computes two gradients in each local step. Departures:
    the personal model takes as many steps, of the same size, as the global one (as in the authors'
    code), with the same local optimiser; lam is fixed, while that code can also choose one for each
    client by validation.
    """

    source = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    fixed_point = "as `fedavg`; of v_i the minimiser of F_i(v) + lam/2 |v - x|^2"
    example = {"lam": 0.5}
    averages_models = True
    ranges = {"lam": FloatRange(low=0.01, high=10.0, log=True)}  # FedQ's range

    kind: Literal["ditto"] = "ditto"
    lam: NonNegative = 0.1
    """lambda: how strongly personal models are pulled towards the global one."""

    def models(self) -> Models:
        return PulledToGlobal(lam=self.lam)
