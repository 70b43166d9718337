"""Time a local step of a convolutional network on one core, layer by layer, against the rate of a
large matrix product.

The CNN of W3 by default, batch 64, float32; the least times of each layer, the product timed in
turn with them.

    python -m bench layers [--channels 64,64] [--hidden 384,192] [--repeats 25]
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from bench.limits import SIDE
from bench.options import command
from fedcore.engine.process_tuning import retain_freed_memory
from fedcore.models.convolutional import Cnn
from fedcore.models.flat import Layout
from fedcore.models.layers import build_module, channels_last
from fedcore.models.losses import CrossEntropy
from fedcore.problems.handwritten_backprop import FusedStem, supported_layers
from fedcore.problems.layers import Convolution, Layer, LinearLayer, Named

BATCH, SHAPE, CLASSES = 64, (3, 32, 32), 10
Result = TypeVar("Result")


class Times:
    """The least time of each operation, in seconds, and the floating-point operations of products."""

    def __init__(self) -> None:
        self.least: dict[str, float] = defaultdict(lambda: float("inf"))
        self.operations: dict[str, int] = {}

    def of(self, name: str, work: Callable[[], Result]) -> Result:
        """Time `work` once more."""
        began = time.thread_time()
        done = work()
        self.least[name] = min(self.least[name], time.thread_time() - began)
        return done


def main(arguments: Sequence[str]) -> None:
    """Print a line for each layer and direction."""
    parser = command("layers", __doc__)
    parser.add_argument("--channels", default="64,64")
    parser.add_argument("--hidden", default="384,192")
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    retain_freed_memory()
    channels, hidden = (
        [int(number) for number in text.split(",")] for text in (options.channels, options.hidden)
    )
    times = measure(
        Cnn.model_validate({"kind": "cnn", "channels": channels, "hidden": hidden}), options.repeats
    )
    rate = 2 * SIDE**3 / times.least.pop("product")
    print(f"large matrix product: {rate / 1e9:.0f} GFLOP/s")
    for name, least in times.least.items():
        done = times.operations.get(name)
        print(
            f"{name:26} {1e3 * least:7.2f} ms"
            + (f" {done / least / 1e9:6.0f} GFLOP/s {done / least / rate:6.0%}" if done else "")
        )
    total, done = sum(times.least.values()), sum(times.operations.values())
    print(f"{'all':26} {1e3 * total:7.2f} ms {done / total / 1e9:6.0f} GFLOP/s {done / total / rate:6.0%}")


def measure(spec: Cnn, repeats: int) -> Times:
    """Time `repeats` steps."""
    module = build_module(spec, SHAPE, CLASSES, 0)
    layout, row, times = Layout(module), supported_layers(module, last=True), Times()
    assert row is not None
    theta, large = layout.flat(module), torch.randn(SIDE, SIDE)
    features, labels = channels_last(torch.randn(BATCH, *SHAPE)), torch.randint(CLASSES, (BATCH,))
    for _ in range(repeats):
        times.of("product", lambda: large @ large)
        gradient = torch.empty_like(theta)
        _step(row, times, layout.named(theta), layout.named(gradient), features, labels)
        times.of("update", lambda gradient=gradient: theta.sub_(gradient, alpha=1e-6))  # type: ignore[misc]
    return times


def _step(
    row: Sequence[Layer], times: Times, parameters: Named, gradients: Named, signal: Tensor, labels: Tensor
) -> None:
    ways = []
    for number, layer in enumerate(row):
        name = f"{number} {type(layer).__name__}"
        forward = partial(layer, signal, parameters, gradients)
        signal, back = times.of(f"{name}, forward", forward)
        ways.append((f"{name}, backward", back))
        if done := _products(layer, parameters, signal):
            # The first has no gradient of its inputs.
            times.operations |= {
                f"{name}, forward": done,
                f"{name}, backward": done if number == 0 else 2 * done,
            }
    error = times.of(
        "loss",
        lambda: (
            CrossEntropy()
            .predict(signal.mT)
            .mT.sub(CrossEntropy().targets(labels, CLASSES, signal.dtype))
            .div_(BATCH)
        ),
    )
    for name, back in reversed(ways):
        error = times.of(name, lambda back=back, error=error: back(error))  # type: ignore[misc]


def _products(layer: Layer, parameters: Named, outputs: Tensor) -> int:
    """Floating-point operations of a layer's product."""
    if isinstance(layer, FusedStem):
        return 4 * _products(layer.convolution, parameters, outputs)
    if not isinstance(layer, Convolution | LinearLayer):
        return 0
    return 2 * parameters[layer.prefix + "weight"].numel() * len(outputs) * prod(outputs.shape[2:])
