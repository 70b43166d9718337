"""An engine, by default the one that `auto` picks, against a plain PyTorch loop: Synthetic(1,1) softmax regression, one thread.

30 clients, 10 a round, E = 20, batch 10, the work of FedProx, Figure 1. Both do the same mini-batch steps in float32; they are
timed in turn (A B A B ...), and the ratio of each pair is reported.

    python -m bench.engine [--engine auto] [--pairs 9] [--rounds 2]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedcore import ExperimentSpec, Simulation
from fedcore.data.plan import mini_batches
from fedcore.engine.engines import ENGINES
from fedcore.problems import load_problem
from fedcore.problems.supervised import SupervisedProblem
from fedcore.systems.participation import draw, weights
from fedcore.systems.work import plan_work

SPEC = ExperimentSpec.model_validate(
    {
        "name": "W1",
        "problem": {"dataset": {"kind": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 30, "seed": 0}, "model": {"kind": "logistic"}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.01, "epochs": 20, "batch_size": 10},
        "participation": {"kind": "uniform", "clients_per_round": 10},
        "rounds": 1_000,
        "evaluation": {"every": 1_000},
    }
)


class PlainLoop:
    """What a PyTorch user would write: a module, an optimiser, a loop over clients, batches and steps."""

    def __init__(self) -> None:
        problem = load_problem(SPEC.problem, 0, data_dir=Path())
        assert isinstance(problem, SupervisedProblem)
        self.problem = problem
        self.model = nn.Linear(60, 10)
        self.round = 0

    def play(self) -> int:
        """One round; returns its local steps."""
        self.round += 1
        sizes, share = self.problem.sizes, self.problem.share
        drawn = draw(SPEC.participation, share, 0, self.round)
        work, _ = plan_work(SPEC.local, SPEC.systems, sizes, drawn.clients, 0, self.round)
        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client, item, weight in zip(drawn.clients, work, weights(SPEC.participation, drawn, share, None), strict=True):
            self.model.load_state_dict(start)
            optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01)
            samples = self.problem.samples(int(client))
            for batch in mini_batches(0, self.round, int(client), int(sizes[client]), item):
                index = torch.from_numpy(batch[batch >= 0])
                optimiser.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(self.model(samples.features[index]), samples.labels[index]))
                optimiser.step()
            for name, value in self.model.state_dict().items():
                total[name] += weight * value
        self.model.load_state_dict(total)
        return sum(item.steps for item in work)


def main() -> None:
    """Time both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["auto", *ENGINES], default="auto")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=2, help="rounds in each timing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = SPEC.model_copy(update={"execution": SPEC.execution.model_copy(update={"engine": options.engine})})
    loop, engine = PlainLoop(), Simulation(wanted, seed=0)
    loop.play(), engine.advance()
    ratios, per_step = [], []
    for _ in range(options.pairs):
        plain, steps = _time(loop.play, options.rounds)
        fast, same = _time(lambda: engine.advance().local_steps, options.rounds)
        assert steps == same, "both must do the same work"
        ratios.append(plain / fast)
        per_step.append((plain / steps, fast / steps))
    plain_us, fast_us = (1e6 * statistics.median(column) for column in zip(*per_step, strict=True))
    print(f"local step: plain loop {plain_us:.0f} us, {engine.engine} {fast_us:.1f} us")
    print(f"ratio: median {statistics.median(ratios):.1f} (min {min(ratios):.1f}, max {max(ratios):.1f}, {options.pairs} pairs)")


def _time(play: Callable[[], int], rounds: int) -> tuple[float, int]:
    began = time.perf_counter()
    steps = sum(play() for _ in range(rounds))
    return time.perf_counter() - began, steps


if __name__ == "__main__":
    main()
