"""Classification: federated data and a model."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcore.data.federated import FederatedData, Samples
from fedcore.models.flat import Layout
from fedcore.problems.base import Ids, Stacked, Values
from fedcore.problems.loss import Loss
from fedcore.problems.stacks import DenseStack, Gathered, LinearStack, VmapStack, depth

EVALUATION_BYTES = 32 << 20
"""Input bytes of one batch of an evaluation or a full gradient; activations come on top."""


class SupervisedProblem:
    """F_i is the mean loss of client i's samples plus l2/2 |theta|^2; p_i is its share of all samples."""

    def __init__(self, data: FederatedData, module: nn.Module, loss: Loss, l2: float) -> None:
        """Take the module to the data: on their device and in their type."""
        train = data.dataset.train
        self._data, self._module, self._loss, self._l2 = data, module.to(train.features), loss, l2
        self._layout, self._depth = Layout(module), depth(module)
        self.dim, self.sizes = self._layout.dim, data.sizes
        self.share = data.sizes / data.sizes.sum()
        self.sample_bytes = train.features[0].numel() * train.features.element_size()
        self.gradient_noise, self.data_source = 0.0, data.dataset.source
        self._starts = torch.from_numpy(data.offsets[:-1]).to(train.labels.device)

    def initial(self) -> Tensor:
        return self._layout.flat(self._module)

    def samples(self, client: int) -> Samples:
        """A copy of one client's training samples."""
        return self._data.dataset.train.take(self._data.rows(client))

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        rows = self._data.rows(client)
        chosen = self._data.dataset.train.take(rows if samples is None else rows[samples])
        total = torch.zeros_like(theta)
        for batch in chosen.batches(self._batch_length):
            total += self._summed_gradient(theta, batch)
        return total / len(chosen) + self._l2 * theta

    def stack(self, clients: Ids, batches: Tensor) -> Stacked:
        starts = self._starts[torch.from_numpy(clients).to(self._starts.device)]
        gathered = Gathered(self._data, starts, batches)
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
            loss, _ = self._mean_over(theta, self._data.held(self._batch_length))
            values["train_loss"] = loss + 0.5 * self._l2 * float(theta.square().sum())
        if {"test_loss", "test_accuracy"}.intersection(measures):
            loss, accuracy = self._mean_over(theta, self._data.dataset.test.batches(self._batch_length))
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

    def _summed_gradient(self, theta: Tensor, samples: Samples) -> Tensor:
        theta = theta.detach().requires_grad_()
        loss = self._loss.per_sample(self._scores(theta, samples.features), samples.labels).sum()
        return torch.autograd.grad(loss, theta)[0]

    def _mean_over(self, theta: Tensor, batches: Iterable[Samples]) -> tuple[float, float]:
        """Mean loss and accuracy over all samples of `batches`; over all that clients hold this is f, since p_i = n_i / n."""
        loss, correct, count = 0.0, 0, 0
        for samples in batches:
            scores = self._scores(theta, samples.features)
            loss += float(self._loss.per_sample(scores, samples.labels).double().sum())
            correct += int((scores.argmax(-1) == samples.labels).sum())
            count += len(samples)
        return loss / count, correct / count

    @property
    def _batch_length(self) -> int:
        return max(1, EVALUATION_BYTES // self.sample_bytes)
