"""Tiers of clients by speed, whose models the server mixes (FedAT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedcore.engine.codec import stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]


@stored
@dataclass(frozen=True, slots=True)
class Tiers:
    """M tiers, from the fastest, between two steps of the server."""

    members: NDArray[np.int16]
    """[N] the tier of each client."""
    rounds: Ids
    """[M] T_m: how many rounds each has ended."""
    models: Tensor
    """[M, D] w_m: the model that each made in its last round; before it, the first model."""
    starts: Tensor
    """[M, D] the server's model when each started the round that it is in."""
    statistics: Tensor | None
    """[M, S] the running statistics of batch norm that go with `models`, if the server averages such."""

    @classmethod
    def by_latency(cls, seconds: Floats, count: int, x: Tensor, statistics: Tensor | None) -> Tiers:
        """`count` tiers of N clients whose work takes `seconds` [N]: of the same number of clients, up to
        one, none in a slower tier faster than one in a faster tier. x [D] is the first model.
        """
        members = np.empty(len(seconds), np.int16)
        for tier, clients in enumerate(np.array_split(np.argsort(seconds, kind="stable"), count)):
            members[clients] = tier
        models = x.repeat(count, 1)
        rows = None if statistics is None else statistics.repeat(count, 1)
        return cls(members, np.zeros(count, np.int64), models, models, rows)

    @property
    def count(self) -> int:
        """M."""
        return len(self.rounds)

    def clients(self, tier: int) -> Ids:
        """The clients of `tier`, ascending."""
        return np.flatnonzero(self.members == tier)

    def started(self, tiers: Sequence[int], x: Tensor) -> Tiers:
        """The tiers after `tiers` have started a round from the server's model x [D]."""
        starts = self.starts.clone()
        for tier in tiers:
            starts[tier] = x
        return replace(self, starts=starts)

    def ended(self, tier: int, direction: Tensor) -> Tiers:
        """The tiers after `tier` has ended a round, which moved its model by `direction` [D] from where
        it started.
        """
        rounds, models = self.rounds.copy(), self.models.clone()
        rounds[tier] += 1
        models[tier] = self.starts[tier] + direction
        return replace(self, rounds=rounds, models=models)

    def with_statistics(self, tier: int, statistics: Tensor) -> Tiers:
        """The tiers with new running `statistics` [S] of `tier`."""
        assert self.statistics is not None
        rows = self.statistics.clone()
        rows[tier] = statistics
        return replace(self, statistics=rows)

    def mixed_statistics(self) -> Tensor:
        """[S] the weighted sum of the tiers' running statistics."""
        assert self.statistics is not None
        return torch.from_numpy(self.weights()).to(self.statistics) @ self.statistics

    def weights(self) -> Floats:
        """[M] T_(M+1-m) / T."""
        weights: Floats = self.rounds[::-1] / self.rounds.sum()
        return weights

    def move(self, tier: int, direction: Tensor, x: Tensor) -> Tensor:
        """The way [D] of the server from x [D] to the weighted sum of the models, after `tier` has ended a
        round with `direction` [D].
        """
        ways = self.models - x
        # Of a single tier, this is the direction to the bit.
        ways[tier] = (self.starts[tier] - x) + direction
        return torch.from_numpy(self.weights()).to(ways) @ ways
