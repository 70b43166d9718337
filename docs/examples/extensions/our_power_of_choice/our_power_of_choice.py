"""Power-of-choice (Cho, Wang and Joshi, 2020, Algorithm 1): the clients with the largest losses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedq.extensions import Participation, Reachable, SpecificationError, np


class OurPowerOfChoice(Participation):
    """Of d candidates, drawn with probability p_i without replacement, the K with the largest losses."""

    interface = "2.0"
    own_weighting, draws_by_share, chooses_by_loss = "uniform", True, True
    example = {"clients_per_round": 2, "candidates": 4}
    kind: Literal["our_power_of_choice"] = "our_power_of_choice"
    clients_per_round: Annotated[int, Field(ge=1)]
    """K, clients that train."""
    candidates: Annotated[int, Field(ge=1)]
    """d, clients that are asked for their loss; more make the selection greedier."""

    def draw(
        self, share: np.ndarray, reachable: Reachable | None, rng: np.random.Generator, round: int
    ) -> np.ndarray:
        among = np.arange(len(share)) if reachable is None else reachable.all()
        size = min(self.candidates, len(among))
        return rng.choice(among, size, replace=False, p=share[among] / share[among].sum() if size else None)

    def choose(self, candidates: np.ndarray, losses: np.ndarray) -> np.ndarray:
        return candidates[np.argsort(-losses, kind="stable")[: self.clients_per_round]]

    def unknown_probability(self) -> str | None:
        return "clients with a large loss are preferred; use `uniform`"

    def check(self, clients: int, rounds: int) -> None:
        if not self.clients_per_round <= self.candidates <= clients:
            raise SpecificationError("/participation/candidates", f"must be between K and N = {clients}")
