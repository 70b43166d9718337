"""Recurrent networks over sequences of symbols [B, T], whole numbers, to scores [B, classes]."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedcore.spec.model import CharLstm, SentLstm


class CharacterLstm(nn.Module):
    """Scores for the character that follows: learned embedding, stacked LSTM, a dense layer on its
    last output.
    """

    def __init__(self, spec: CharLstm, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, spec.embedding)
        self.lstm = nn.LSTM(spec.embedding, spec.hidden, spec.layers, batch_first=True)
        self.output = nn.Linear(spec.hidden, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols [B, T] to scores [B, classes]."""
        return self.output(_last(self.lstm, self.embedding(symbols.int())))  # type: ignore[no-any-return]


class SentimentLstm(nn.Module):
    """Scores (0, z) of two classes, so that the cross-entropy is that of one logistic output z.

    The word vectors stay as they are.
    """

    vectors: Tensor
    """[V, E], of no parameter: neither trained nor sent."""

    def __init__(self, spec: SentLstm, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.lstm = nn.LSTM(vectors.shape[1], spec.hidden, spec.layers, batch_first=True)
        self.dense = nn.Linear(spec.hidden, spec.dense)
        self.output = nn.Linear(spec.dense, 1)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols [B, T] to scores [B, 2]."""
        words = nn.functional.embedding(symbols.int(), self.vectors)
        logit = self.output(self.dense(_last(self.lstm, words)))
        return nn.functional.pad(logit, (1, 0))


def _last(lstm: nn.LSTM, inputs: Tensor) -> Tensor:
    """The last layer's output [B, H] after the last of the inputs [B, T, E]."""
    outputs: Tensor = lstm(inputs)[0]
    return outputs[:, -1]


def is_recurrent(module: nn.Module) -> bool:
    """True if `module` has a recurrent layer of PyTorch."""
    return any(isinstance(layer, nn.RNNBase) for layer in module.modules())


@contextmanager
def step_by_step() -> Iterator[None]:
    """Within the block PyTorch's recurrent layers on the CPU take one step after another.

    The fused kernel knows nothing of `torch.func.vmap`, which would call it client by client and
    warn.
    """
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
