"""Flower: a ServerApp with its strategy FedAvg, a ClientApp, `run_simulation` on Ray with one core
a client.

The strategy's own loop over rounds runs; where it would draw a cohort it is given which clients
train. Evaluation is off.
"""

import logging
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench.peers import modules
from bench.peers.common import Arrays, Channel, Task, folder
from bench.peers.flower_client import train


class Stopped(Exception):  # noqa: N818 - not an error
    """The bench has said so."""


class Planned(FedAvg):
    """FedAvg with the cohorts of the plan."""

    def __init__(self, channel: Channel, task: Task) -> None:
        super().__init__(fraction_evaluate=0.0, weighted_by_key="num-examples")
        self._channel, self._task = channel, task
        self._arrays = task.initial
        self._steps = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to the node of each client of the cohort."""
        round = self._channel.next_round(self)
        if round is None:
            raise Stopped
        cohort, nodes = self._task.cohort(round), sorted(grid.get_node_ids())
        self._steps = sum(len(assigned.batches) for assigned in cohort)
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"round": round, "place": place})}),
                dst_node_id=nodes[assigned.client],
                message_type=MessageType.TRAIN,
            )
            for place, assigned in enumerate(cohort)
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """As Flower has it."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            raise RuntimeError("no client has trained; see the log")
        self._arrays = {name: array.numpy() for name, array in arrays.items()}
        self._channel.played(self._steps)
        return arrays, metrics

    def model(self) -> Arrays:
        """As the server last had it."""
        return self._arrays

    def tune(self) -> None:
        """One core a client is Flower's way to use them all."""

    def describe(self) -> str:
        """Its workers."""
        return f"{os.cpu_count()} workers"


def main(channel: Channel, folder: Path) -> None:
    """Run until the bench says stop."""
    task, app = Task(folder), ServerApp()
    logging.getLogger("flwr").setLevel(logging.WARNING)

    @app.main()
    def _main(grid: Grid, context: Context) -> None:
        module = modules.build(task)
        while len(list(grid.get_node_ids())) < task.clients:
            time.sleep(0.01)
        channel.ready()
        with suppress(Stopped):
            Planned(channel, task).start(
                grid, ArrayRecord(modules.trained(module)), num_rounds=task.rounds + 1
            )

    torch.set_num_threads(1)
    os.environ["BENCH_FOLDER"] = str(folder.absolute())
    run_simulation(
        server_app=app,
        client_app=_client(),
        num_supernodes=task.clients,
        backend_config={
            "init_args": {
                "num_cpus": os.cpu_count() or 1,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def _client() -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


if __name__ == "__main__":
    sys.argv[1] = str(Path(sys.argv[1]).absolute())
    main(Channel(), folder())
