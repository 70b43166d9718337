"""Personal models of all clients, as they are evaluated: those of the rule, after the training that
comes before evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import Adaptation, Algorithm, ClientContext, ClientUpdate, Solver
from fedcore.data.plan import augmented_batches
from fedcore.engine.assignment import CohortWork, Ids, Job
from fedcore.engine.client_table import ClientTable
from fedcore.engine.engines import ENGINES
from fedcore.engine.model_choice import choose_models
from fedcore.engine.network_state import bind_state, with_passes
from fedcore.engine.server import RunContext, ServerState
from fedcore.problems import TrainingProblem
from fedcore.problems.base import working_bytes
from fedcore.problems.transformed import Transformed
from fedcore.solvers.schedules import StepSizes
from fedcore.spec.evaluation import FineTuning
from fedcore.systems.work import Work

BEFORE_TRAINING = 0
"""Round of the streams of fine-tuning, which no round of training has: the same mini-batches at each
evaluation.
"""
MODELS_HELD = 6
"""Vectors [D] for each client whose personal model is trained at the same time."""


@dataclass(frozen=True, slots=True)
class PersonalModels:
    """The personal models of all clients after a round."""

    setting: RunContext
    server: ServerState
    table: ClientTable
    together: int | None = None
    """Clients whose models are held at the same time (default: as many as memory allows)."""

    def accuracies(self, problem: TrainingProblem) -> NDArray[np.float64] | None:
        """[N] accuracy of each client's personal model on its own test samples in `problem`, NaN for
        clients without such; None without classes, or where test samples belong to no client.
        """
        found = [problem.accuracies_of(models, clients) for clients, models in self._groups()]
        known = [part for part in found if part is not None]
        return np.concatenate(known) if known else None

    def _groups(self) -> Iterator[tuple[Ids, Tensor]]:
        """Clients [m] and their models [m, D]."""
        x, population = self.server.x, len(self.setting.problem.share)
        length = self.together or max(1, working_bytes(x.device) // (MODELS_HELD * x.nbytes))
        for start in range(0, population, length):
            clients = np.arange(start, min(start + length, population))
            yield clients, self.models(clients)

    def models(self, clients: Ids) -> Tensor:
        """[m, D] the personal models of `clients` [m]."""
        rule, x = self.setting.algorithm.rule, self.server.x
        problem = bind_state(self.setting.problem, self.server.statistics, self.table)
        own = choose_models(problem, rule, x, clients).x
        models = rule.personal_model(own, self.table.gather(clients, rule.memory())).expand(len(clients), -1)
        tuning, adaptation = self.setting.spec.evaluation.fine_tuning, rule.adaptation()
        if tuning is not None:
            return self._tuned(models, clients, tuning)
        return models if adaptation is None else self._adapted(models, clients, adaptation)

    def _tuned(self, models: Tensor, clients: Ids, tuning: FineTuning) -> Tensor:
        """The models after mini-batch steps of the run's local optimiser."""
        local, samples = self.setting.spec.local, self.setting.problem.sizes[clients]
        limit = samples if local.batch_size == "full" else np.minimum(local.batch_size, samples)
        work = [Work(tuning.steps, size) for size in limit.tolist()]
        lr = tuning.lr or local.step_sizes(self.setting.spec.rounds, 1, 0).first
        return self._trained(models, clients, work, self.setting.algorithm.solver, lr)

    def _adapted(self, models: Tensor, clients: Ids, adaptation: Adaptation) -> Tensor:
        """The models after the full-batch steps that their rule declares."""
        samples = self.setting.problem.sizes[clients]
        work = [Work(adaptation.steps, size) for size in samples.tolist()]
        return self._trained(models, clients, work, Solver(prox_mu=adaptation.mu), adaptation.lr)

    def _trained(self, models: Tensor, clients: Ids, work: list[Work], solver: Solver, lr: float) -> Tensor:
        """The models [m, D] after their clients' `work`, by plain descent on their own losses."""
        setting, problem = self.setting, self.setting.problem
        if isinstance(problem, Transformed):
            problem = problem.problem
        problem = bind_state(problem, self.server.statistics, self.table)
        seed, samples = setting.seed, problem.sizes[clients]
        batches = augmented_batches(seed, BEFORE_TRAINING, clients, samples, work, problem.views)
        steps = np.array([item.steps for item in work], np.int64)
        counts = torch.from_numpy(steps[:, None]).to(models)
        local = ClientContext(
            x=models,
            shared={},
            memory={},
            full_gradient=None,
            mean_gradient=None,
            steps=counts,
            normaliser=torch.full_like(counts, torch.nan),
            lr=lr,
        )
        planned = CohortWork(clients, steps, batches, None, StepSizes(lr), local)
        rounds = [BEFORE_TRAINING] * len(clients)
        planned = with_passes(planned, problem, self.server.statistics, {}, seed, rounds)
        engine = ENGINES["vectorised" if problem.stackable else "parallel"]
        job = Job(Algorithm(solver=solver), problem, planned, memory_divisor=setting.memory_divisor)
        (update,) = engine([job])
        assert isinstance(update, ClientUpdate)
        return models + update.delta
