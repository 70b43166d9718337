"""The compressors: time to draw for and to compress the messages of ten clients, D = 1,000,000,
float32, one thread.

The median over repetitions in which the compressors take turns; a message is compressed as it is in
the engine.

    python -m bench compressors [--dim 1000000] [--clients 10] [--repeats 7]
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from bench.options import command
from fedcore.compression.base import CompressorSpec
from fedcore.compression.qsgd import QSGD
from fedcore.compression.rand_k import RandK
from fedcore.compression.sign import Sign
from fedcore.compression.top_k import TopK
from fedcore.engine.compressed_links import message_rngs, send

COMPRESSORS: dict[str, CompressorSpec] = {
    "top_k 1 %": TopK(kind="top_k", ratio=0.01),
    "top_k 10 %": TopK(kind="top_k", ratio=0.1),
    "rand_k 1 %": RandK(kind="rand_k", ratio=0.01),
    "rand_k 10 %": RandK(kind="rand_k", ratio=0.1),
    "qsgd": QSGD(kind="qsgd"),
    "sign": Sign(kind="sign"),
}


def main(arguments: Sequence[str]) -> None:
    """Print a row for each compressor."""
    parser = command("compressors", __doc__)
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    message = torch.randn(options.clients, options.dim, generator=torch.Generator().manual_seed(0))
    times = defaultdict(list)
    for round in range(1, options.repeats + 1):
        for name, spec in COMPRESSORS.items():
            times[name].append(_seconds(spec, message, round))
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"{name:12} {1e3 * median:8.1f} ms {message.numel() / median / 1e6:8.1f} million entries a second"
        )


def _seconds(spec: CompressorSpec, message: torch.Tensor, round: int) -> float:
    compressor, clients = spec.build(message.shape[-1]), np.arange(len(message))
    residual = torch.zeros_like(message)
    began = time.perf_counter()
    send(compressor, message, residual, message_rngs(0, "bench", round, clients))
    return time.perf_counter() - began
