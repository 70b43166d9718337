"""Bytes on the wire, counted exactly: every message a round sends, in each direction."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedcore.core import Algorithm, Compressor

Ids = NDArray[np.int64]
NEVER = -1


class Traffic:
    """Counts the bytes of each round; remembers when each client last received the model.

    Changes in place.

    A client's first download is the dense model. Afterwards, under a compressed downlink, it needs
    the messages of every round since its last one, or the dense model if that is shorter.
    """

    def __init__(self, algorithm: Algorithm, population: int, dim: int, word: int) -> None:
        """Count messages of D = `dim` numbers of `word` bytes."""
        up, down = (
            compressor.message_bytes(dim, word) for compressor in (algorithm.uplink, algorithm.downlink)
        )
        self._dense = Compressor().message_bytes(dim, word)
        self._extra = len(algorithm.rule.shared()) * self._dense
        self._gathers, self._opening = algorithm.rule.exchanges_gradients(), algorithm.rule.first_exchange()
        self._up, self._down = (self._dense, self._dense) if self._gathers else (up, down)
        self._gathering = (up, down) if self._gathers else (0, 0)
        self._hears = algorithm.rule.receives_new_model()
        self._last_heard = np.full(population, NEVER, np.int64)

    def state(self) -> dict[str, Ids]:
        """Return which clients have received the model, and when last."""
        ids = np.flatnonzero(self._last_heard != NEVER)
        return {"ids": ids, "rounds": self._last_heard[ids]}

    def load(self, state: Mapping[str, Ids]) -> None:
        """Restore from `state`."""
        self._last_heard[:] = NEVER
        self._last_heard[state["ids"]] = state["rounds"]

    def up(self, clients: int) -> int:
        """Return the bytes of the uploads of `clients`: the change of the model, and the rule's own
        vectors uncompressed.
        """
        return clients * (self._up + self._extra)

    def down(self, clients: Ids, round: int) -> Ids:
        """Return the bytes [M] that reach each of `clients` at the start of `round`, and record
        that they have.
        """
        last = self._last_heard[clients]
        missed = np.minimum((round - last) * self._down, self._dense)
        self._last_heard[clients] = round
        return np.where(last == NEVER, self._dense, missed) + self._extra

    def settle(self, clients: Ids, round: int) -> int:
        """Return the bytes that reach `clients` at the end of `round`, under a rule that sends them
        the next model then.
        """
        if self._hears:
            self._last_heard[clients] = round + 1
        return self.settling(len(clients))

    def settling(self, clients: int) -> int:
        """Bytes of the next model that `clients` receive at the end of a round, under such a rule."""
        return clients * self._down if self._hears else 0

    def exchange(self, clients: int, round: int) -> tuple[int, int]:
        """Return the bytes up and down of the exchange of gradients with which `clients` begin
        `round`: one message each in either direction.
        """
        up, down = self._gathering
        if self._gathers and round == 1 and self._opening != "compressed":
            up = down = self._dense if self._opening == "exact" else 0
        return clients * up, clients * down
