"""Back-propagation by hand against automatic differentiation."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedcore.data.federated import Samples
from fedcore.models.batch_norm import trained_norms
from fedcore.models.convolutional import DropoutCnn
from fedcore.models.examination import examine
from fedcore.models.flat import Layout
from fedcore.models.layers import channels_last, dense, reads_channels_last
from fedcore.models.losses import CrossEntropy, Loss, SquaredError
from fedcore.problems.gradients import Automatic
from fedcore.problems.handwritten_backprop import Chain, FusedStem, supported_layers
from fedcore.problems.network import TrainingPass
from fedcore.problems.passes import ForwardPasses, PassKey, Step

BATCH, CLASSES = 5, 3
ROWS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "as the published CNN": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *dense(24, 7, CLASSES),
        ),
        (3, 12, 12),
    ),
    "odd sizes and one channel": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.ReLU(), *dense(18, CLASSES)
        ),
        (1, 9, 11),
    ),
    "uncommon options": (
        lambda: nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=2, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
            nn.Sequential(nn.MaxPool2d((1, 2)), nn.ReLU(), nn.ReLU()),
            nn.Flatten(),
            nn.Linear(24, CLASSES, bias=False),
        ),
        (2, 8, 9),
    ),
    "dense layers alone": (lambda: dense(6, 5, CLASSES), (2, 3)),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("name", ROWS)
def test_the_gradient_is_autograds(name: str, loss: Loss, last: bool) -> None:
    make, shape = ROWS[name]
    torch.manual_seed(0)
    module = make().double()
    last = last and len(shape) == 3
    layout, row = Layout(module), supported_layers(module, last=last)
    assert row is not None
    theta, features = layout.flat(module), torch.randn(BATCH, *shape, dtype=torch.float64)
    # Numbers that occur often, so that windows of the pooling have several largest.
    features = (2 * features).round() / 2
    labels, weights = torch.randint(CLASSES, (BATCH,)), torch.rand(BATCH, dtype=torch.float64)
    expected = Automatic(module, layout, loss)(theta, features.clone(), labels, weights)
    by_hand = Chain(row, layout, loss, last=last)(theta, features.clone(), labels, weights)
    torch.testing.assert_close(by_hand, expected, rtol=0, atol=1e-13)
    replica = Automatic(module, layout, loss, last=last).replica()
    torch.testing.assert_close(replica(theta, features, labels, weights), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("images", [1, 2, 5])
def test_the_first_gradient_does_not_depend_on_how_many_images_are_taken_at_a_time(images: int) -> None:
    make, shape = ROWS["as the published CNN"]
    torch.manual_seed(0)
    module = make().double()
    layout, row = Layout(module), supported_layers(module, last=True)
    assert row is not None
    assert isinstance(row[0], FusedStem)
    # Of each output and of each number that its weights see.
    row[0] = replace(row[0], cached_bytes=images * 8 * 12 * 12 * (4 + 3 * 5 * 5))
    theta, features, labels = (
        layout.flat(module),
        torch.randn(BATCH, *shape, dtype=torch.float64),
        torch.arange(BATCH) % CLASSES,
    )
    weights = torch.rand(BATCH, dtype=torch.float64)
    expected = Automatic(module, layout, CrossEntropy())(theta, features, labels, weights)
    by_hand = Chain(row, layout, CrossEntropy(), last=True)(theta, features, labels, weights)
    torch.testing.assert_close(by_hand, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("last", [False, True])
def test_nan_goes_through_as_it_does_through_the_library(last: bool) -> None:
    make, shape = ROWS["odd sizes and one channel"]
    module = make().double()
    layout, row = Layout(module), supported_layers(module, last=last)
    assert row is not None
    theta, features = layout.flat(module), torch.randn(BATCH, *shape, dtype=torch.float64)
    features[0, 0, 3, 3] = torch.nan
    labels, weights = torch.arange(BATCH) % CLASSES, torch.ones(BATCH, dtype=torch.float64)
    expected = Automatic(module, layout, CrossEntropy())(theta, features.clone(), labels, weights)
    assert expected.isnan().any()
    by_hand = Chain(row, layout, CrossEntropy(), last=last)(theta, features, labels, weights)
    torch.testing.assert_close(by_hand, expected, rtol=0, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("last", [False, True])
def test_the_gradient_in_bfloat16_is_that_of_autocast_to_rounding(last: bool) -> None:
    """A negative NaN, which a processor makes of infinity - infinity, is not below zero."""
    make, shape = ROWS["as the published CNN"]
    torch.manual_seed(0)
    module = make()
    layout, row = Layout(module), supported_layers(module, last=last)
    assert row is not None
    theta, features = layout.flat(module), torch.randn(BATCH, *shape)
    labels, weights = torch.arange(BATCH) % CLASSES, torch.rand(BATCH)
    by_hand = Chain(row, layout, CrossEntropy(), last=last, autocast=True)
    exact = Automatic(module, layout, CrossEntropy())(theta, features, labels, weights)
    found = by_hand(theta, features, labels, weights)
    assert found.dtype == torch.float32
    assert 0 < float((found - exact).norm() / exact.norm()) < 4 * 2.0**-8
    features[0, 0, 3, 3] = -torch.nan
    assert by_hand(theta, features, labels, weights).isnan().any()


FORGETFUL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "the published CNN with dropout": (lambda: DropoutCnn().build((3, 9, 8), CLASSES, None), (3, 9, 8)),
    "dropout everywhere": (
        lambda: nn.Sequential(
            nn.Dropout(0.2),
            nn.Conv2d(2, 4, 5, padding=2, bias=False),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.MaxPool2d(2),
            nn.Sequential(nn.Dropout(0.5), nn.Conv2d(4, 6, 3), nn.Dropout(0.3), nn.ReLU()),
            *[nn.Flatten(), nn.Dropout(0.6), nn.Linear(24, 7), nn.Dropout(0.4, inplace=True)],
            nn.Linear(7, CLASSES),
        ),
        (2, 8, 8),
    ),
    "dense layers": (
        lambda: nn.Sequential(
            *[nn.Flatten(), nn.Linear(36, 33), nn.ReLU(), nn.Dropout(0.5)],
            *[nn.Linear(33, 17), nn.Dropout(0.1), nn.ReLU(), nn.Linear(17, CLASSES)],
        ),
        (6, 6),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "loss", [CrossEntropy(label_smoothing=0.1), SquaredError()], ids=["entropy", "squared"]
)
@pytest.mark.parametrize("name", FORGETFUL)
def test_with_dropout_the_gradient_has_the_bits_of_autograds(
    name: str, loss: Loss, last: bool, dtype: torch.dtype
) -> None:
    """Runs that began before dropout was supported here must go on to the same bits."""
    make, shape = FORGETFUL[name]
    torch.manual_seed(0)
    module = make().to(dtype)
    norms, last = trained_norms(module, None), last and len(shape) == 3
    features = torch.randn(BATCH, *shape, dtype=dtype)
    layout, statistics = Layout(module), features.new_zeros(0)
    sites, _ = examine(module, features[:3], norms, statistics)
    row = supported_layers(module, last=last, sites=sites)
    assert row is not None
    # Two parts, of three samples and of two.
    automatic = TrainingPass(Automatic(module, layout, loss, last=last), norms, sites, 0.01, layout.dim, 3, 3)
    by_hand = replace(automatic, chain=Chain(row, layout, loss, last=last))
    theta, samples = layout.flat(module), Samples(features, torch.arange(BATCH) % CLASSES)
    for number in range(3):
        step = Step(ForwardPasses([PassKey(0, 1, 2)], statistics[None, None]), number)
        gradient = by_hand.gradient(theta, samples, step)
        assert torch.equal(gradient, automatic.gradient(theta, samples, step))


shared = nn.Linear(4, 4)
activation = nn.ReLU()


class Own(nn.Linear):
    """A layer that may do anything."""


def hooked() -> nn.Module:
    module = dense(4, CLASSES)
    module[1].register_forward_hook(lambda _layer, _inputs, output: 2 * output)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), *dense(18, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), *dense(18, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), *dense(2, CLASSES)),
        nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared),
        nn.Sequential(nn.Flatten(), activation, nn.Linear(4, 4), activation, nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Flatten(), Own(4, CLASSES)),
        nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES), nn.ReLU()),
        hooked(),
        nn.LSTM(2, 3),
    ],
)
def test_unknown_layers_are_left_to_automatic_differentiation(module: nn.Module) -> None:
    assert supported_layers(module) is None


def test_one_channel_has_an_order_in_memory_too() -> None:
    images = torch.randn(2, 1, 4, 5)
    assert channels_last(images).stride() == (20, 1, 5, 1)
    assert torch.equal(channels_last(images), images)


def test_wide_convolutions_keep_channels_first() -> None:
    assert reads_channels_last(nn.Sequential(nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)))
    assert not reads_channels_last(nn.Sequential(nn.Conv2d(512, 512, 3)))
    assert not reads_channels_last(dense(4, 3))
