"""The links between clients and server: what is compressed on them, and the exchange of gradients before training."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedcore.core import Cohort, Vectors
from fedcore.engine.assignment import Ids
from fedcore.engine.messages import lots, send
from fedcore.engine.server import RESIDUAL, Setting

UPLINK, DOWNLINK = "uplink compression", "downlink compression"
"""Purposes of randomness."""
SERVER = np.array([0])
"""Who draws for a message of the server."""


@dataclass(frozen=True, slots=True)
class Links:
    """Both links in one round; what a client or the server sends is compressed at most once a round on each."""

    setting: Setting
    clients: Ids
    """[M]."""
    round: int

    def up(self, messages: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Messages [M, D] as the server decodes them, and what error feedback keeps at the clients for the next."""
        sent = send(
            self.setting.algorithm.uplink, messages, memory.get(RESIDUAL), lots(self.setting.seed, UPLINK, self.round, self.clients)
        )
        return sent.received, {} if sent.residual is None else {RESIDUAL: sent.residual}

    def down(self, message: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """A message [D] as the clients decode it, and what error feedback keeps at the server for the next."""
        sent = send(self.setting.algorithm.downlink, message, residual, lots(self.setting.seed, DOWNLINK, self.round, SERVER))
        return sent.received, residual if sent.residual is None else sent.residual


def gather(links: Links, anchors: Tensor, cohort: Cohort, memory: Vectors, residual: Tensor) -> tuple[Tensor, Vectors, Tensor]:
    """The exchange before training: the gathered gradient [D], and what error feedback keeps at the clients and at the server.

    h_i = C_up(rho_i + anchor_i), g = C_down(e + sum_i w_i h_i / W), W = sum_i w_i: FedLin, Algorithm 1, lines 7 to 9, done at the
    start of the round instead of the end of the one before, so that a cohort trains with its own gradients.
    """
    opening = links.setting.algorithm.rule.opening() if links.round == 1 else "compressed"
    kept: Vectors = {RESIDUAL: memory[RESIDUAL]} if RESIDUAL in memory else {}
    if opening == "zero":
        return torch.zeros_like(residual), kept, residual
    if opening == "exact":
        return cohort.mean(anchors), kept, residual
    received, kept = links.up(anchors, memory)
    gathered, residual = links.down(cohort.mean(received), residual)
    return gathered, kept, residual
