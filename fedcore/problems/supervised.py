"""Classification: federated data and a model."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor
from torch.func import functional_call

from fedcore.data.federated import FederatedData
from fedcore.models import zoo
from fedcore.models.flat import Layout
from fedcore.problems.base import Ids, Stacked, Values
from fedcore.problems.loss import loss_of
from fedcore.problems.stacks import DenseStack, Gathered, LinearStack, VmapStack, depth
from fedcore.spec.problem import AnyModel

EVALUATION_BYTES = 32 << 20
"""Input bytes of one batch of an evaluation or a full gradient; activations come on top."""


class SupervisedProblem:
    """F_i is the mean loss of client i's samples plus l2/2 |theta|^2; p_i is its share of all samples."""

    def __init__(self, data: FederatedData, spec: AnyModel, seed: int) -> None:
        """Build the model for the data, on their device and in their type."""
        self._data, self._l2, self._loss = data, spec.l2, loss_of(spec)
        module = zoo.build(spec, tuple(data.features.shape[1:]), data.classes, seed)
        self._layout, self._initial = Layout(module), Layout(module).flat(module).to(data.features)
        self._module = module.to(data.features)
        self.dim, self.sizes = self._layout.dim, data.sizes
        self.share = data.sizes / data.sizes.sum()
        self.sample_bytes = data.features[0].numel() * data.features.element_size()
        self.gradient_noise, self.data_source = 0.0, data.source
        self._starts = torch.from_numpy(data.offsets[:-1]).to(data.features.device)
        self._depth = depth(module)

    def initial(self) -> Tensor:
        return self._initial.clone()

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """One client's features [n_i, ...] and labels [n_i]."""
        mine = slice(*self._data.offsets[client : client + 2])
        return self._data.features[mine], self._data.labels[mine]

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        features, labels = self.samples(client)
        if samples is not None:
            features, labels = features[samples], labels[samples]
        total = torch.zeros_like(theta)
        for part in self._batches(len(labels)):
            total += self._summed_gradient(theta, features[part], labels[part])
        return total / len(labels) + self._l2 * theta

    def stack(self, clients: Ids, batches: Tensor) -> Stacked:
        starts = self._starts[torch.from_numpy(clients).to(self._starts.device)]
        gathered = Gathered(self._data.features, self._data.labels, starts, batches)
        if self._depth == 0:
            return VmapStack(gathered, self._weighted_loss)
        stack = LinearStack if self._depth == 1 else DenseStack
        return stack(gathered, self._layout, self._loss, self._l2)

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return torch.stack([self.gradient(theta, int(client), None) for client in clients])

    @torch.no_grad()
    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        """train_loss f(theta), test_loss, test_accuracy."""
        values: Values = {}
        if "train_loss" in measures:
            loss, _ = self._totals(theta, self._data.features, self._data.labels)
            values["train_loss"] = loss + 0.5 * self._l2 * float(theta.square().sum())
        if {"test_loss", "test_accuracy"}.intersection(measures):
            test = self._data.test
            loss, accuracy = self._totals(theta, test.features, test.labels)
            values |= {name: value for name, value in (("test_loss", loss), ("test_accuracy", accuracy)) if name in measures}
        return values

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return {name: view.contiguous() for name, view in self._layout.named(theta).items()}

    def _scores(self, theta: Tensor, features: Tensor) -> Tensor:
        scores: Tensor = functional_call(self._module, self._layout.named(theta), (features,))
        return scores

    def _weighted_loss(self, theta: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        losses = self._loss.per_sample(self._scores(theta, features), labels)
        return (losses * weights).sum() + 0.5 * self._l2 * theta.square().sum()

    def _summed_gradient(self, theta: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        theta = theta.detach().requires_grad_()
        loss = self._loss.per_sample(self._scores(theta, features), labels).sum()
        return torch.autograd.grad(loss, theta)[0]

    def _totals(self, theta: Tensor, features: Tensor, labels: Tensor) -> tuple[float, float]:
        """Mean loss and accuracy; since p_i = n_i / n the mean over samples is f."""
        loss, correct = 0.0, 0
        for part in self._batches(len(labels)):
            scores = self._scores(theta, features[part])
            loss += float(self._loss.per_sample(scores, labels[part]).double().sum())
            correct += int((scores.argmax(-1) == labels[part]).sum())
        return loss / len(labels), correct / len(labels)

    def _batches(self, count: int) -> Iterator[slice]:
        length = max(1, EVALUATION_BYTES // self.sample_bytes)
        return (slice(start, start + length) for start in range(0, count, length))
