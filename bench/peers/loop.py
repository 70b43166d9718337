"""The plain loop: what a PyTorch user would write, a module, an optimiser, a loop over clients and batches."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from bench.peers import modules
from bench.peers.common import Arrays, Assigned, Channel, Task, folder, serve

TRIAL_S = 1.0


class Loop:
    """FedAvg, client after client."""

    def __init__(self, folder: Path) -> None:
        self._task = Task(folder)
        self._module = modules.build(self._task)

    def play(self, round: int) -> int:
        """Every client of the cohort from the global model, then their weighted mean."""
        cohort = self._task.cohort(round)
        start = {name: value.clone() for name, value in self._module.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for assigned in cohort:
            self._module.load_state_dict(start)
            train(self._module, self._task, assigned)
            for name, value in self._module.state_dict().items():
                total[name] += assigned.weight * value
        self._module.load_state_dict(total)
        return sum(len(assigned.batches) for assigned in cohort)

    def model(self) -> Arrays:
        """As the module has it."""
        return modules.arrays(self._module)

    def tune(self) -> None:
        """One thread or all, whichever is faster on the largest client of the first round."""
        kept, cohort = self.model(), self._task.cohort(1)
        largest = max(cohort, key=lambda assigned: len(assigned.batches))
        rates = {}
        for threads in (1, os.cpu_count() or 1):
            torch.set_num_threads(threads)
            rates[threads] = _rate(self._module, self._task, largest)
        best = max(rates, key=lambda threads: rates[threads])
        torch.set_num_threads(best)
        modules.load(self._module, kept)

    def describe(self) -> str:
        """Its threads."""
        threads = torch.get_num_threads()
        return f"{threads} threads" if threads > 1 else "1 thread"


def train(module: nn.Module, task: Task, assigned: Assigned) -> None:
    """A client's local steps."""
    features, labels = map(torch.from_numpy, task.data(assigned.client))
    optimiser = torch.optim.SGD(module.parameters(), lr=task.lr)
    for batch in assigned.batches:
        index = torch.from_numpy(batch)
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(features[index]), labels[index]))
        optimiser.step()


def _rate(module: nn.Module, task: Task, assigned: Assigned) -> float:
    """Local steps a second, over about TRIAL_S."""
    few = Assigned(assigned.client, 1.0, assigned.batches[:5])
    train(module, task, few)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < TRIAL_S:
        train(module, task, few)
        done += len(few.batches)
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    channel = Channel()
    serve(channel, Loop(folder()))
