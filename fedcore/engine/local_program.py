"""A client's local training: rule, models and solver put together, once for all engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Protocol

import torch

from fedcore.core import ClientContext, ClientUpdate, Vectors, regularised
from fedcore.engine.network_state import keeps_own
from fedcore.problems.network import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from fedcore.core import Algorithm
    from fedcore.engine.assignment import Job


class Evaluate(Protocol):
    """The gradients [..., P] of a step's mini-batch at models [..., P]."""

    def __call__(self, model: Tensor, *, evaluation: int, at_x: bool = False) -> Tensor:
        """`evaluation` counts those of a step: the first ones belong to the models that are trained. `at_x`
        if it is the one at the model that training began with.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """Local training on vectors y [..., T], of one client or a cohort.

    A vector has all models of a client, P parameters each. The first D of a model are those of the server;
    the others are private: they stay with the client and are trained by the local optimiser alone (Li et
    al., FedBN, ICLR 2021, Algorithm 1). The rule sees the first D of the first model.
    """

    algorithm: Algorithm
    dim: int
    """D."""
    private: bool
    """True if models have private parameters."""

    @classmethod
    def of(cls, job: Job) -> LocalProgram:
        """The training of a job's clients."""
        return cls(job.algorithm, job.problem.dim, keeps_own(job.problem))

    def is_affine(self) -> bool:
        """True if it is the recursion of `Algorithm.is_affine`."""
        return self.algorithm.is_affine() and not self.private

    def gradient(self, evaluate: Evaluate, y: Tensor, context: ClientContext) -> Tensor:
        """The gradient [..., T] of a step at y [..., T]."""
        rule, models, size = self.algorithm.rule, self.algorithm.models, self._size(y)
        here, behind, seen = y[..., : self.dim], y[..., self.dim : size], self._seen(context)
        # Evaluations of the rule beside its first come after those of the models.
        numbers: Iterator[int] = chain((0,), count(models.trained))
        own = torch.zeros_like(behind)

        def at(model: Tensor) -> Tensor:
            nonlocal own
            if not self.private:
                return evaluate(model, evaluation=next(numbers))
            # Where a rule takes a gradient at x by itself, private parameters are as they were at x.
            model = model.expand_as(here)
            at_x = (model == seen.x).all(-1, keepdim=True) & (model != here).any(-1, keepdim=True)
            start = context.x[..., self.dim :].where(at_x, behind)
            grad = evaluate(torch.cat([model, start], -1), evaluation=next(numbers))
            own = own.where(at_x, grad[..., self.dim :])
            return grad[..., : self.dim]

        grad = rule.gradient(at, here, seen)
        if self.private:
            grad = torch.cat([grad, own], -1)
        if "gradient_at_x" in rule.needs():
            start = context.x[..., :size].expand_as(grad)
            grad = grad - evaluate(start, evaluation=0, at_x=True)
        if models.trained == 1:
            return grad
        numbers = count(1)
        return torch.cat([grad, models.gradient(at, y, context)], -1)

    def step(
        self, grad: Tensor, y: Tensor, state: Vectors, k: int, context: ClientContext
    ) -> tuple[Tensor, Vectors]:
        """The k-th step [..., T] of the round from y [..., T], from 0, and the new state of the solver.

        The direction d is the rule's at g + weight_decay y, and prox_mu (y - x). The solver's step is along
        d min(1, clip_norm / (|d| + 1e-6)), as `torch.nn.utils.clip_grad_norm_` clips; each model is clipped
        by itself.
        """
        solver, models = self.algorithm.solver, self.algorithm.models
        direction = self.direction(grad, y, context)
        if solver.clip_norm is not None:
            parts = direction.reshape(*direction.shape[:-1], models.trained, -1)
            norm = parts.norm(dim=-1, keepdim=True)
            direction = (parts * (solver.clip_norm / (norm + 1e-6)).clamp(max=1.0)).flatten(-2)
        step, state = solver.step(direction, y, state, k)
        return models.taken(step, k, context), state

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        """The direction [..., T] before it is clipped."""

        def direction(grad: Tensor) -> Tensor:
            return self._directions(grad, y, context)

        return regularised(self.algorithm.solver, direction, grad, y, context.x)

    def finish(self, y: Tensor, context: ClientContext) -> ClientUpdate:
        """The result of training, at y [..., T]."""
        models, seen = self.algorithm.models, self._seen(context)
        delta = y[..., : self.dim] - seen.x
        if models.stays is not None:
            delta = delta.masked_fill(models.stays, 0.0)
        memory = dict(models.remember(y, context))
        if self.private:
            memory[PRIVATE] = y[..., self.dim :]
        return ClientUpdate(delta, memory, self.algorithm.rule.sends(delta, seen))

    def _directions(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        dim, size, algorithm = self.dim, self._size(y), self.algorithm
        own = algorithm.rule.direction(grad[..., :dim], y[..., :dim], self._seen(context))
        if self.private:
            own = torch.cat([own, grad[..., dim:size]], -1)
        if algorithm.models.trained == 1:
            return own
        return torch.cat([own, algorithm.models.direction(grad[..., size:], y, context)], -1)

    def _size(self, y: Tensor) -> int:
        """P."""
        return y.shape[-1] // self.algorithm.models.trained

    def _seen(self, context: ClientContext) -> ClientContext:
        """The context as the rule sees it."""
        if context.x.shape[-1] == self.dim:
            return context
        return replace(context, x=context.x[..., : self.dim])
