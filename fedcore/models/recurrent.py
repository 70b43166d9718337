"""Recurrent networks over sequences of symbols [B, T], integers, to scores [B, classes]."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from fedcore.data.base import DataShape
from fedcore.lazy import nn, torch
from fedcore.models.base import Layers, ModelSpec, Width, dense_parameters

if TYPE_CHECKING:
    from torch import Tensor


class CharLstm(ModelSpec):
    """Next-character LSTM (McMahan et al., 2017; FedProx, Section 5.1): embedding, stacked LSTM, a
    dense layer on its last output.
    """

    reads_symbols = True
    is_examined = False
    example = {"hidden": 256}

    kind: Literal["char_lstm"] = "char_lstm"
    embedding: Width = 8
    """Length of a character's learned vector."""
    hidden: Width = 100
    """Width of each LSTM layer; 256 in McMahan et al. and in FedProx's code."""
    layers: Layers = 2
    """Stacked LSTM layers."""

    @classmethod
    def takes_symbols(cls, shape: DataShape) -> bool:
        return shape.symbols > 0 and not shape.embedding

    def misfit(self, shape: DataShape) -> str | None:
        if self.takes_symbols(shape):
            return None
        return "char_lstm requires sequences of characters, e.g. shakespeare"

    def parameter_count(self, shape: DataShape) -> int:
        return (
            shape.symbols * self.embedding
            + _lstm_parameters(self.embedding, self.hidden, self.layers)
            + dense_parameters(self.hidden, shape.outputs)
        )

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        spec = self

        class CharacterLstm(nn.Module):
            """Scores for the character that follows: learned embedding, stacked LSTM, a dense layer on its
            last output.
            """

            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(classes, spec.embedding)
                self.lstm = nn.LSTM(spec.embedding, spec.hidden, spec.layers, batch_first=True)
                self.output = nn.Linear(spec.hidden, classes)

            def forward(self, symbols: Tensor) -> Tensor:
                """Symbols [B, T] to scores [B, classes]."""
                return self.output(_last(self.lstm, self.embedding(symbols.int())))  # type: ignore[no-any-return]

        return CharacterLstm()


class SentLstm(ModelSpec):
    """Sentiment LSTM (FedProx, Section 5.1): frozen word vectors, stacked LSTM, a linear layer on
    its last output, a logistic output.
    """

    reads_symbols = True
    is_examined = False

    kind: Literal["sent_lstm"] = "sent_lstm"
    hidden: Width = 256
    """Width of each LSTM layer; 100 in FedProx's code."""
    layers: Layers = 2
    """Stacked LSTM layers."""
    dense: Width = 30
    """Width of the linear layer."""

    @classmethod
    def takes_symbols(cls, shape: DataShape) -> bool:
        return shape.embedding > 0

    def misfit(self, shape: DataShape) -> str | None:
        if self.takes_symbols(shape):
            return None
        return "sent_lstm requires sequences of words with fixed vectors, e.g. sent140"

    def parameter_count(self, shape: DataShape) -> int:
        lstm = _lstm_parameters(shape.embedding, self.hidden, self.layers)
        return lstm + dense_parameters(self.hidden, self.dense, 1)

    def build(self, features: tuple[int, ...], classes: int, vectors: Tensor | None) -> nn.Module:
        spec = self

        class SentimentLstm(nn.Module):
            """Scores (0, z) of two classes, so that the cross-entropy is that of one logistic output z.

            The word vectors stay as they are.
            """

            vectors: Tensor
            """[V, E], of no parameter: neither trained nor sent."""

            def __init__(self, vectors: Tensor) -> None:
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

        assert vectors is not None
        return SentimentLstm(vectors)


def _lstm_parameters(fan_in: int, hidden: int, layers: int) -> int:
    """Four gates per layer, each with input weights, recurrent weights and, as PyTorch has it, two
    biases.
    """
    return 4 * hidden * (layers * (hidden + 2) + fan_in + (layers - 1) * hidden)


def _last(lstm: nn.LSTM, inputs: Tensor) -> Tensor:
    """The last layer's output [B, H] after the last of the inputs [B, T, E]."""
    outputs: Tensor = lstm(inputs)[0]
    return outputs[:, -1]


def is_recurrent(module: nn.Module) -> bool:
    """True if `module` has a recurrent layer of PyTorch."""
    return any(isinstance(layer, nn.RNNBase) for layer in module.modules())


@contextmanager
def step_by_step() -> Iterator[None]:
    """Within the block PyTorch's recurrent layers take one step after another.

    The fused kernels know nothing of `torch.func.vmap`: a CPU's would be called client by client, and
    cuDNN's fails. A GPU has a kernel for a step of an LSTM or GRU, which is called client by client; of
    that PyTorch warns.
    """
    fused: tuple[Any, ...] = torch.backends.mkldnn, torch.backends.cudnn
    before = [library.enabled for library in fused]
    for library in fused:
        library.enabled = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            yield
    finally:
        for library, enabled in zip(fused, before, strict=True):
            library.enabled = enabled
