"""The bytes of each round, counted exactly from the declared messages. Plans count by it, too, so it loads
no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedcore.lazy import np
from fedcore.messages import DENSE, RoundMessage, Way

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedcore.core import Algorithm

    Ids = NDArray[np.int64]

NEVER = -1


class Traffic:
    """Counts the bytes of each round; remembers when each client last received the model.

    Changes in place.

    A client's first download is the dense model. Afterwards, under a compressed downlink, it needs
    the messages of every round since its last one, or the dense model if that is shorter.
    """

    def __init__(
        self, messages: Sequence[RoundMessage], algorithm: Algorithm, population: int, word: int
    ) -> None:
        """Count these `messages` of an algorithm, with numbers of `word` bytes, for a population."""
        self._messages, self._word = messages, word
        self._links = {"up": algorithm.uplink, "down": algorithm.downlink}
        self._up, self._extra = self._sum("up", "with"), self._sum("down", "with")
        self._settling = self._sum("down", "after")
        self._models = [
            (one.size(algorithm.downlink, word), one.size(DENSE, word)) for one in messages if one.catches_up
        ]
        self._last_heard = np.full(population, NEVER, np.int64)

    def _sum(self, way: Way, when: str, round: int = 1) -> int:
        """Bytes of a client's messages in a round, without those that catch up."""
        return sum(
            one.size(self._links[way], self._word)
            for one in self._messages
            if (one.way, one.when, one.catches_up) == (way, when, False) and one.sent_in(round)
        )

    def state(self) -> dict[str, Ids]:
        """Return which clients have received the model, and when last."""
        ids = np.flatnonzero(self._last_heard != NEVER)
        return {"ids": ids, "rounds": self._last_heard[ids]}

    def load(self, state: Mapping[str, Ids]) -> None:
        """Restore from `state`."""
        self._last_heard[:] = NEVER
        self._last_heard[state["ids"]] = state["rounds"]

    def up(self, clients: int) -> int:
        """Return the bytes that `clients` send with their changes."""
        return clients * self._up

    def down(self, clients: Ids, round: int) -> Ids:
        """Return the bytes [M] that reach each of `clients` at the start of `round`, and record
        that they have.
        """
        last, received = self._last_heard[clients], np.full(len(clients), self._extra, np.int64)
        for size, dense in self._models:
            missed = np.minimum((round - last) * size, dense)
            received += np.where(last == NEVER, dense, missed)
        self._last_heard[clients] = round
        return received

    def dense(self) -> int:
        """Return the bytes of a first download."""
        return self._extra + sum(dense for _, dense in self._models)

    def settling(self, clients: int) -> int:
        """Bytes of the next model that `clients` receive at the end of a round, under a rule that sends
        it then.
        """
        return clients * self._settling

    def exchange(self, clients: int, round: int) -> tuple[int, int]:
        """Return the bytes up and down of the exchange with which `clients` begin `round`."""
        return clients * self._sum("up", "before", round), clients * self._sum("down", "before", round)

    def finish(self, clients: Ids, round: int) -> tuple[int, int]:
        """Return the bytes up and down of `clients`, who reach the server in `round`, beside those of
        `down`; record the next model that they receive, under a rule that sends it.
        """
        up, down = self.exchange(len(clients), round)
        if self._settling:
            self._last_heard[clients] = round + 1
        return up + self.up(len(clients)), down + self.settling(len(clients))

    def reached(self) -> int:
        """Return the number of clients that have received the model."""
        return int((self._last_heard != NEVER).sum())

    def sent(self, message: RoundMessage | None, clients: int) -> int:
        """Return the bytes of a `message` without compression that each of `clients` sends; none without."""
        return 0 if message is None else clients * message.size(DENSE, self._word)
