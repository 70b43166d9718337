"""pfl-research in two processes, as `torchrun --nproc-per-node 2` starts them: each trains every
other user of a cohort on one thread, and they add up their sums.

The first talks with the bench and tells the other which round to play.
"""

import os
import socket
import subprocess
import sys

PROCESSES = 2


def _ranks() -> None:
    """Start the other process, and set the variables that torchrun would set."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {
        "TORCHELASTIC_RUN_ID": "bench",
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for rank in range(1, PROCESSES):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        subprocess.Popen(  # noqa: S603 - our own
            (sys.executable, "-m", "bench.peers.pfl2", sys.argv[1]),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            env=os.environ | shared | of_rank,
        )
    os.environ.update(shared | {"RANK": "0", "LOCAL_RANK": "0"})


if "RANK" not in os.environ:
    _ranks()

# pfl joins the processes as it is imported.
import torch  # noqa: E402

from bench.peers import pfl  # noqa: E402
from bench.peers.common import Channel, Describes, folder  # noqa: E402


class Shared(Channel):
    """The connection to the bench, of which the other processes learn the rounds."""

    def __init__(self) -> None:
        self._leads = os.environ["RANK"] == "0"
        if self._leads:
            super().__init__()

    def ready(self) -> None:
        """Tell the bench, once."""
        if self._leads:
            super().ready()

    def next_round(self, contender: Describes) -> int | None:
        """Return the round to play; None, sent as 0, if there is none."""
        told = torch.tensor((super().next_round(contender) or 0) if self._leads else 0)
        torch.distributed.broadcast(told, 0)
        return int(told) or None

    def played(self, steps: int) -> None:
        """Report a round, once."""
        if self._leads:
            super().played(steps)


class SharedRounds(pfl.Rounds):
    """Rounds of processes that have a core each."""

    def tune(self) -> None:
        """One thread each."""

    def describe(self) -> str:
        """The processes."""
        return f"{PROCESSES} processes"


if __name__ == "__main__":
    torch.set_num_threads(1)
    pfl.main(Shared(), folder(), SharedRounds)
