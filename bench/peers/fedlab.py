"""FedLab: its standalone pipeline, with SGDSerialClientTrainer and SyncServerHandler.

As its tutorial on standalone simulation has it: a pipeline of one's own, a data set that hands out
a DataLoader a client. The loaders walk the task's mini-batches, all epochs in one; the handler's
mean is weighted by `Aggregators.fedavg_aggregate`.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from torch.utils.data import DataLoader, Dataset

from bench.peers import modules
from bench.peers.common import Arrays, Channel, Task, folder
from bench.peers.loop import threads, tune

Sample = tuple[torch.Tensor, torch.Tensor]


class Batches(Dataset[Sample]):
    """A client's samples, taken a batch at a time."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self._features, self._labels = features, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: torch.Tensor) -> Sample:
        return self._features[index], self._labels[index]


class Planned:
    """A federated data set as FedLab defines it: `get_dataloader` by client."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.round(1)

    def round(self, number: int) -> None:
        """Turn to the batches of a round."""
        self.cohort = {assigned.client: assigned for assigned in self._task.cohort(number)}

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[Sample]:
        """The client's batches of the round."""
        assert batch_size == self._task.batch_size
        features, labels = map(torch.from_numpy, self._task.data(client))
        batches = [torch.from_numpy(batch) for batch in self.cohort[client].batches]
        return DataLoader(Batches(features, labels), sampler=batches, batch_size=None)


class Server(SyncServerHandler):
    """FedLab's synchronous server, with the cohorts and weights of the plan."""

    data: Planned

    def sample_clients(self) -> list[int]:
        """The cohort of the round."""
        return list(self.data.cohort)

    def global_update(self, buffer: list[list[torch.Tensor]]) -> None:
        """The weighted mean of what the clients sent."""
        weights = [assigned.weight for assigned in self.data.cohort.values()]
        mean = Aggregators.fedavg_aggregate([sent[0] for sent in buffer], weights)
        SerializationTool.deserialize_model(self._model, mean)


class Pipeline(StandalonePipeline):
    """FedLab's loop over rounds, told when to begin each."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._task, self._channel = Task(folder), channel
        self._module = modules.build(self._task)
        wide = len(self._task.cohort(1))
        # Half a client more, since FedLab takes the whole part of ratio * clients.
        ratio = min(1.0, (wide + 0.5) / self._task.clients)
        server = Server(self._module, self._task.rounds, ratio, logger=logging.getLogger("fedlab"))
        trainer = SGDSerialClientTrainer(self._module, self._task.clients, logger=logging.getLogger("fedlab"))
        server.data = Planned(self._task)
        trainer.setup_dataset(server.data)
        trainer.setup_optim(1, self._task.batch_size, self._task.lr)
        super().__init__(server, trainer)

    def main(self) -> None:
        """As in the base class, without evaluation."""
        self._channel.ready()
        for round in self._rounds():
            self.handler.data.round(round)
            broadcast = self.handler.downlink_package
            self.trainer.local_process(broadcast, self.handler.sample_clients())
            for pack in self.trainer.uplink_package:
                self.handler.load(pack)
            self._channel.played(sum(len(assigned.batches) for assigned in self.handler.data.cohort.values()))

    def _rounds(self) -> Iterator[int]:
        while (round := self._channel.next_round(self)) is not None:
            yield round

    def model(self) -> Arrays:
        """The server's."""
        return modules.arrays(self.handler.model)

    def tune(self) -> None:
        """The threads."""
        module = modules.build(self._task)
        tune(module, self._task)

    def describe(self) -> str:
        """The threads."""
        return threads()


if __name__ == "__main__":
    Pipeline(Channel(), folder()).main()
