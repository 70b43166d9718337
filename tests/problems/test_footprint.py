"""Bytes of one sample on its way through a model."""

import torch

from fedcore.models.convolutional import Cnn
from fedcore.models.layers import build_module, dense
from fedcore.models.recurrent import CharLstm
from fedcore.problems.supervised import sample_bytes


def test_features_and_the_output_of_every_layer_count() -> None:
    """The sample, flattened, 5, 5 after ReLU, 3: 4 bytes each."""
    assert sample_bytes(dense(6, 5, 3), torch.zeros(1, 6)) == 4 * (6 + 6 + 5 + 5 + 3)


def test_convolutions_count_with_all_their_channels() -> None:
    """On MNIST: two maps of 28 x 28 in 32 channels, pooled.

    Two of 14 x 14 in 64, pooled and flattened; 512 twice; 10.
    """
    module = build_module(Cnn(kind="cnn"), (1, 28, 28), 10, seed=0)
    maps = 2 * 32 * 28**2 + 32 * 14**2 + 2 * 64 * 14**2 + 2 * 64 * 7**2
    assert sample_bytes(module, torch.zeros(1, 1, 28, 28)) == 4 * (28**2 + maps + 2 * 512 + 10)


def test_an_lstm_counts_with_the_gates_and_the_cell_of_every_step() -> None:
    """Six symbols of a byte.

    Their embeddings of 3 numbers; in each of 2 layers 6 times 4 numbers a step; 11 scores.
    """
    module = build_module(CharLstm(kind="char_lstm", embedding=3, hidden=4), (6,), 11, seed=0)
    assert sample_bytes(module, torch.zeros(1, 6, dtype=torch.uint8)) == 6 + 4 * (6 * 3 + 2 * 6 * 6 * 4 + 11)


def test_counting_leaves_the_module_as_it_was() -> None:
    module = dense(2, 2)
    sample_bytes(module, torch.zeros(1, 2))
    assert not module[1]._forward_hooks
