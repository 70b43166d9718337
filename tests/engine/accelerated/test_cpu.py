"""Training in machine code against the same steps longhand, whatever the shapes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, c_double, c_int64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llvmlite import ir
from torch import Tensor, nn

from fedcore.engine.accelerated import cpu
from fedcore.engine.accelerated.cpu.dense import fill
from fedcore.engine.accelerated.cpu.routine import once, translate
from fedcore.engine.accelerated.cpu.simd import DOUBLE, WORD
from fedcore.problems.dense import LossName


@dataclass(frozen=True)
class Case:
    """One client's training on random samples."""

    widths: tuple[int, ...]
    batch: int = 10
    last: int | None = None
    """Samples in every third batch, where they are fewer."""
    spare: int = 9
    """Samples that the client has beyond a batch."""
    kinds: int = 7
    """Batches that differ; as many as steps, or one."""
    pull: float = 0.0
    shrink: float = 0.0
    momentum: float = 0.0
    compares: bool = False
    offset: bool = False
    loss: LossName = "cross_entropy"
    dtype: Any = np.float64
    steps: int = 7


CASES = [
    Case((3, 2)),
    Case((60, 10)),
    Case((60, 10), batch=1),
    Case((1, 100), batch=7, last=3),
    Case((64, 62), batch=64, last=1),
    Case((31, 3), batch=300, kinds=1),
    Case((31, 3), batch=300, last=150, momentum=0.5),
    Case((8, 5), batch=129, compares=True, offset=True, pull=0.5),
    Case((17, 4), batch=16, kinds=1),
    Case((60, 10), pull=0.5, shrink=0.25, momentum=0.9, offset=True),
    Case((60, 10), pull=0.5, shrink=0.25, compares=True, last=4),
    Case((20, 10), momentum=0.9, compares=True, offset=True),
    Case((9, 1), loss="squared_error_of_reals", batch=12),
    Case((9, 6), loss="squared_error", shrink=0.1),
    Case((2000, 3), batch=50, spare=250),
    Case((20, 30, 10)),
    Case((7, 16, 33, 5), batch=13, last=2),
    Case((20, 17, 10), batch=140, kinds=1, shrink=0.1),
    Case((20, 30, 40, 10), pull=0.5, shrink=0.25, momentum=0.9, offset=True, compares=True),
    Case((20, 30, 10), pull=0.5, compares=True, last=5),
    Case((20, 8, 1), loss="squared_error_of_reals", kinds=1),
    Case((60, 10), dtype=np.float32),
    Case((60, 50, 10), dtype=np.float32),
    Case((33, 7), dtype=np.float32, batch=21, pull=0.5, momentum=0.9, offset=True),
]


@dataclass
class Data:
    """The data of a test case."""

    features: Any
    labels: Any
    rows: Any
    batches: Any
    x: Any
    offset: Any
    sizes: Any


def drawn(case: Case) -> Data:
    """Random numbers in the shapes of `case`."""
    lot = np.random.default_rng(7)
    samples, width, classes = case.batch + case.spare, case.widths[0], case.widths[-1]
    dim = sum(fan_out * (fan_in + 1) for fan_in, fan_out in zip(case.widths, case.widths[1:], strict=False))
    batches = np.stack([lot.permutation(samples)[: case.batch] for _ in range(case.kinds)])
    if case.last is not None:
        batches[::3, case.last :] = -1
    real = case.loss == "squared_error_of_reals"
    return Data(
        features=lot.normal(size=(2 * samples, width)).astype(case.dtype),
        labels=lot.normal(size=2 * samples).astype(case.dtype)
        if real
        else lot.integers(classes, size=2 * samples),
        rows=lot.permutation(2 * samples)[:samples],
        batches=batches,
        x=lot.normal(size=dim).astype(case.dtype),
        offset=lot.normal(size=dim).astype(case.dtype),
        sizes=0.1 / (1 + np.arange(case.steps)),
    )


def trained(case: Case, data: Data, *, delta: bool = False, x: Any = None) -> Any:
    """The model [D] that the kernels train."""
    x = data.x if x is None else x
    net, out = cpu.make_network(case.widths, x.itemsize, case.batch), np.empty_like(x)
    padded, task = cpu.pad_parameters(net, x), np.zeros(1, cpu.TASK)
    for name in ("features", "labels", "rows", "batches", "sizes"):
        task[name] = getattr(data, name).ctypes.data
    task["held"], task["kinds"], task["width"], task["steps"] = (
        len(data.rows),
        case.kinds,
        case.batch,
        case.steps,
    )
    task["x"], task["out"], task["delta"] = padded.ctypes.data, out.ctypes.data, delta
    task["offset"] = data.offset.ctypes.data if case.offset else 0
    task["compares"], task["pace"], task["scale"] = case.compares, 0.5, 1.5
    task["pull"], task["shrink"], task["momentum"] = case.pull, case.shrink, case.momentum
    cpu.train(net, case.loss, task, np.arange(2), np.zeros(1, np.int64))
    return out


def longhand(case: Case, data: Data) -> Any:
    """The same by automatic differentiation, [D]."""
    x, offset = torch.from_numpy(data.x), torch.from_numpy(data.offset) * case.offset
    y, velocity = x.clone(), torch.zeros_like(x)
    for k in range(case.steps):
        batch = data.batches[k % case.kinds]
        rows = torch.from_numpy(data.rows[batch[batch >= 0]])
        grad = gradient(case, data, y, rows) - (gradient(case, data, x, rows) if case.compares else 0)
        velocity = case.momentum * velocity + grad + case.shrink * y + case.pull * (y - x) + offset
        y = y - 0.5 * data.sizes[k] * velocity
    return y.numpy()


def gradient(case: Case, data: Data, theta: Tensor, rows: Tensor) -> Tensor:
    """Of the mean loss, [D]."""
    theta = theta.clone().requires_grad_()
    out, labels = torch.from_numpy(data.features)[rows], torch.from_numpy(data.labels)[rows]
    shapes = list(zip(case.widths, case.widths[1:], strict=False))
    for layer, part in enumerate(torch.split(theta, [fan_out * (fan_in + 1) for fan_in, fan_out in shapes])):
        matrix = part.view(shapes[layer][1], -1)
        out = out @ matrix[:, :-1].T + matrix[:, -1]
        out = out.relu() if layer < len(shapes) - 1 else out
    if case.loss == "cross_entropy":
        loss = nn.functional.cross_entropy(out, labels)
    else:
        target = (
            labels[:, None] if labels.is_floating_point() else nn.functional.one_hot(labels, case.widths[-1])
        )
        loss = 0.5 * (out - target).square().sum(1).mean()
    return torch.autograd.grad(1.5 * loss, theta)[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_code_is_the_steps_longhand(case: Case) -> None:
    data, tolerance = drawn(case), 1e-12 if case.dtype == np.float64 else 1e-5
    expected = longhand(case, data)
    np.testing.assert_allclose(trained(case, data), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        trained(case, data, delta=True), expected - data.x, rtol=tolerance, atol=2 * tolerance
    )


def test_threads_that_need_the_same_code_at_once_get_the_same() -> None:
    entered, again = threading.Semaphore(1), threading.Event()

    def make() -> object:
        """Wait for another thread that makes it, too."""
        if not entered.acquire(blocking=False):
            again.set()
        again.wait(timeout=0.05)
        return object()

    made = once(make)
    with ThreadPoolExecutor(4) as pool:
        codes = [done.result() for done in [pool.submit(made) for _ in range(4)]]
    assert len(set(map(id, codes))) == 1


def test_code_is_read_from_disk_and_compiled_again_where_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def filled() -> list[float]:
        kind = ir.FunctionType(ir.VoidType(), [DOUBLE, WORD, WORD])
        code = translate(fill, kind, 8)
        target = np.zeros(24)
        CFUNCTYPE(None, c_double, c_int64, c_int64)(code.address)(3.0, target.ctypes.data, 5)
        return list(target[:6])

    results = [filled()]
    files = [path for path in (tmp_path / "fedq" / "machine-code").iterdir() if path.is_file()]
    contents = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    results.append(filled())
    assert contents == [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    for path in files:
        path.write_bytes(b"damaged" * 20)
    results.append(filled())
    # The routine that it calls is held by the process.
    assert sum(path.read_bytes() == content for path, (content, _) in zip(files, contents, strict=True)) == 1
    assert results == [[3.0] * 5 + [0.0]] * 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_show_in_machine_code(value: float) -> None:
    case = Case((20, 10))
    data = drawn(case)
    x = data.x.copy()
    x[5] = value
    assert not np.isfinite(trained(case, data, x=x)).all()
    data.features[data.rows[data.batches[0, 0]], 3] = value
    assert not np.isfinite(trained(case, data)).all()


def test_far_apart_scores_leave_the_exponential_exact() -> None:
    case = Case((2, 3), batch=6, steps=1, kinds=1)
    data = drawn(case)
    data.features *= 400.0
    np.testing.assert_allclose(trained(case, data), longhand(case, data), rtol=1e-13, atol=1e-13)
