"""Workers of the embedded stack on the GPUs of a machine."""

import subprocess
import sys

import pytest

from workers.embedded.gpus import VISIBLE, assignment, devices

PLAIN = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
"""
DIVIDED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-cccc)
  MIG 3g.20gb     Device  1: (UUID: MIG-dddd)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
"""


@pytest.mark.parametrize(
    ("environment", "listing", "expected"),
    [
        ({}, PLAIN, ["GPU-aaaa", "GPU-bbbb"]),
        ({}, DIVIDED, ["MIG-cccc", "MIG-dddd", "GPU-bbbb"]),
        ({}, "", []),
        ({}, "No devices found.\n", []),
        ({VISIBLE: "1, 3"}, PLAIN, ["1", "3"]),
        ({VISIBLE: ""}, PLAIN, []),
        ({VISIBLE: "-1"}, PLAIN, []),
    ],
)
def test_gpus_are_those_that_are_visible(
    environment: dict[str, str], listing: str, expected: list[str]
) -> None:
    assert devices(environment, listing) == expected


def test_workers_are_spread_over_the_gpus() -> None:
    assert assignment(["a", "b"], None, 64) == ["a", "b"]
    assert assignment(["a", "b"], 3, 64) == ["a", "b", "a"]
    assert assignment([], None, 4) == [None] * 4
    assert assignment([], 2, 4) == [None] * 2


FORKED = """
import os, socket
from workers.embedded.forkserver import ForkedProcess, _fork

ours, theirs = socket.socketpair()
for gpu in ("GPU-aaaa", None):
    child = ForkedProcess(ours, "worker-1", "tests.workers.embedded.visible_gpus", (1, 2), gpu)
    message, descriptors, _, _ = socket.recv_fds(theirs, 256, 3)
    _fork(message.decode(), descriptors, {})
    os.wait()
"""


@pytest.mark.slow
def test_a_forked_worker_sees_its_gpu_alone() -> None:
    """In a process of its own: the one of the tests has threads, and is not forked."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["GPU-aaaa", "None"]
