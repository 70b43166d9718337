"""pfl-research: FederatedAveraging over a SimulatedBackend and a PyTorchModel, weighted by
datapoints, one process; `bench.peers.pfl2` has two.

As its benchmarks have it: tensors resident, user data sets by `FederatedDataset`. A user's batches
are the task's, all epochs in one. Evaluation is asked for in the first round only, which pfl
insists on and which is not timed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from bench.peers import modules
from bench.peers.common import Arrays, Assigned, Channel, Task, folder
from bench.peers.loop import threads, tune


class User(PyTorchTensorDataset):
    """A client's samples, in the order of the plan."""

    def __init__(self, task: Task, assigned: Assigned) -> None:
        super().__init__(
            tuple(map(torch.from_numpy, task.data(assigned.client))), user_id=str(assigned.client)
        )
        self._planned = assigned.batches

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        """The planned batches to train on; all samples at once to evaluate."""
        if batch_size is None or batch_size >= len(self):
            yield list(self.raw_data)
            return
        features, labels = self.raw_data
        for batch in self._planned:
            index = torch.from_numpy(batch)
            yield [features[index], labels[index]]


class Trained(nn.Module):
    """A module with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean over a batch."""
        return nn.functional.cross_entropy(self.inner(features), labels)

    @torch.no_grad()
    def metrics(self, features: Tensor, labels: Tensor) -> dict[str, Any]:
        """The loss."""
        return {"loss": Weighted(self.loss(features, labels).item() * len(labels), len(labels))}


class Rounds(TrainingProcessCallback):
    """Tells pfl's loop when to begin each round, and who takes part."""

    def __init__(self, channel: Channel, task: Task, module: nn.Module) -> None:
        self._channel, self._task, self._module = channel, task, module
        self._cohort: list[Assigned] = []
        self._waiting: list[int] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Before the first round."""
        self._channel.ready()
        self._next()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After a round and before the next; true when there is none."""
        self._channel.played(sum(len(assigned.batches) for assigned in self._cohort))
        return not self._next(), Metrics()

    def _next(self) -> bool:
        round = self._channel.next_round(self)
        if round is None:
            return False
        self._cohort = self._task.cohort(round)
        self._waiting = list(range(len(self._cohort)))
        return True

    def sample(self) -> int:
        """The next user of the cohort, by place."""
        return self._waiting.pop(0)

    def user(self, place: int) -> User:
        """The data set of a user."""
        return User(self._task, self._cohort[place])

    def model(self) -> Arrays:
        """The central model."""
        return modules.arrays(self._module)

    def tune(self) -> None:
        """The threads."""
        tune(modules.build(self._task), self._task)

    def describe(self) -> str:
        """The threads."""
        return threads()


def main(channel: Channel, folder: Path, callback: type[Rounds] = Rounds) -> None:
    """Run pfl's own loop."""
    task = Task(folder)
    module = modules.build(task)
    rounds = callback(channel, task, module)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from the global one
    data = FederatedDataset(rounds.user, rounds.sample)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    trained = Trained(module)
    model = PyTorchModel(trained, torch.optim.SGD, torch.optim.SGD(trained.parameters(), lr=1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=1_000_000,
        evaluation_frequency=1_000_000,
        train_cohort_size=len(task.cohort(1)),
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size
    )
    FederatedAveraging().run(
        parameters,
        backend,
        model,
        training,
        NNEvalHyperParams(local_batch_size=None),
        [rounds],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(Channel(), folder())
