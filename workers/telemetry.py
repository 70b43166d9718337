"""Telemetry of claimed runs: lines that are logged about them, and the resources that their process
uses, until transactions of their workers store both (`fedcore.platform.store.telemetry`).

The heartbeat measures and stores them, and so does the transaction that ends a claim. None of it may
stop a run: what cannot be measured or stored is missing.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from threading import Lock
from typing import NamedTuple, TypeVar

import psutil

from fedcore.platform.logging import LoggedEvent, RunLogHandler
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.telemetry import ResourceUse

PENDING_LINES, PENDING_SAMPLES = 200, 100
"""Lines and samples of a run that wait to be stored; of more, the newest."""
SHORTEST_S = 1.0
"""The end of a claim is measured only this long after the last sample: processor time of other processes
is counted in steps of 10 ms.
"""

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class GpuUse(NamedTuple):
    """Use of a GPU by all processes on it."""

    utilisation: float | None
    """Fraction of the last second or less in which it computed, 0 to 1; None if unknown."""
    memory_bytes: int


class ResourceReading(NamedTuple):
    """State of the process that computes at one moment."""

    at: float
    """Seconds by the monotonic clock."""
    cpu_seconds: float
    """Processor time so far."""
    memory_bytes: int
    gpu: GpuUse | None


def read_gpu(device: str) -> GpuUse:
    """Read the use of a GPU.

    PyTorch tells its utilisation where nvidia-ml-py is installed, and not of a part of a GPU (MIG).
    """
    import torch

    free, whole = torch.cuda.mem_get_info(device)
    try:
        utilisation = torch.cuda.utilization(device) / 100
    except Exception:  # ModuleNotFoundError, or any error of the library of the driver
        utilisation = None
    return GpuUse(utilisation, whole - free)


class ResourceMeter:
    """Reads the resources that this process uses."""

    def __init__(self, device: str, read_gpu: Callable[[str], GpuUse] = read_gpu) -> None:
        """Runs are trained on `device`."""
        self._process = psutil.Process()
        self._device, self._read_gpu = device, read_gpu

    def read(self, *, with_children: bool) -> ResourceReading | None:
        """Read processor time, memory and GPU of this process, or of the processes that it has started
        too; None where the system does not tell.
        """
        try:
            cpu, memory = self._of_all() if with_children else self._own()
        except (psutil.Error, OSError):
            log.debug("resource use is unknown", exc_info=True)
            return None
        return ResourceReading(time.monotonic(), cpu, memory, self._of_gpu())

    def _of_gpu(self) -> GpuUse | None:
        if not self._device.startswith("cuda"):
            return None
        try:
            return self._read_gpu(self._device)
        except Exception:
            # Whatever a driver says, the run goes on.
            log.debug("the use of the GPU is unknown", exc_info=True)
            return None

    def _own(self) -> tuple[float, int]:
        return time.process_time(), self._process.memory_info().rss

    def _of_all(self) -> tuple[float, int]:
        cpu, memory = 0.0, 0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                # Those of children are of children that have ended.
                cpu += times.user + times.system + times.children_user + times.children_system
                memory += _proportional_memory(process)
        return cpu, memory


def _proportional_memory(process: psutil.Process) -> int:
    """Memory of a process in bytes, pages that n processes share counted as 1/n, where the system tells;
    otherwise its resident memory.
    """
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    return int(getattr(full, "pss", full.rss))


class RunTelemetry:
    """Lines and samples of one claimed run that are not stored yet; threads may share it."""

    def __init__(self, meter: ResourceMeter, *, with_children: bool) -> None:
        self.lines: deque[LoggedEvent] = deque(maxlen=PENDING_LINES)
        self._samples: deque[ResourceUse] = deque(maxlen=PENDING_SAMPLES)
        self._meter, self._with_children = meter, with_children
        self._last = meter.read(with_children=with_children)
        self._lock, self._is_measured, self._has_failed = Lock(), False, False

    def measure(self, least_s: float = 0.0) -> None:
        """Take a sample over the time since the last one, unless that was less than `least_s` ago; the
        first is always taken.
        """
        with self._lock:
            last = self._last
            if last and self._is_measured and time.monotonic() - last.at < least_s:
                return
            now = self._last = self._meter.read(with_children=self._with_children)
            if last and now and now.at > last.at:
                self._is_measured = True
                self._samples.append(_used(last, now))

    @contextmanager
    def unstored(self) -> Iterator[tuple[list[LoggedEvent], list[ResourceUse]]]:
        """Lines and samples for the transaction in the block; if it fails, they wait for a later one.

        None for the transaction after one that failed: they may be why.
        """
        if self._has_failed:
            self._has_failed = False
            yield [], []
            return
        lines, samples = _taken(self.lines), _taken(self._samples)
        try:
            yield lines, samples
        except BaseException:
            _put_back(self.lines, lines)
            _put_back(self._samples, samples)
            self._has_failed = True
            raise


def _used(last: ResourceReading, now: ResourceReading) -> ResourceUse:
    seconds = now.at - last.at
    gpu = now.gpu
    return ResourceUse(
        datetime.now(UTC),
        seconds,
        # Less where a process has ended whose time its parent has not taken over yet.
        max(0.0, now.cpu_seconds - last.cpu_seconds) / seconds,
        now.memory_bytes,
        None if gpu is None else gpu.utilisation,
        None if gpu is None else gpu.memory_bytes,
    )


def _taken(queue: deque[Item]) -> list[Item]:
    """Take every item from a queue, to which others append meanwhile."""
    items: list[Item] = []
    with suppress(IndexError):
        while True:
            items.append(queue.popleft())
    return items


def _put_back(queue: deque[Item], items: list[Item]) -> None:
    """Put items before the items of a queue, as many of the newest as it holds."""
    for item in reversed(items):
        if len(queue) == queue.maxlen:
            return
        queue.appendleft(item)


class TelemetryCollector:
    """Collects the telemetry of all runs that a worker holds."""

    def __init__(self, meter: ResourceMeter) -> None:
        """Listen to the log of this process."""
        self._meter, self._handler = meter, RunLogHandler()
        logging.getLogger().addHandler(self._handler)

    def start(self, claim: Claim) -> RunTelemetry:
        """Collect for a claimed run from now on."""
        # Code bundles are computed by processes of their own. To find them, all processes of the system
        # are looked at.
        telemetry = RunTelemetry(self._meter, with_children=claim.spec.get("code") is not None)
        self._handler.collect(claim.run_id, telemetry.lines)
        return telemetry

    def end(self, claim: Claim) -> None:
        """Collect no more for a run."""
        self._handler.ignore(claim.run_id)

    def close(self) -> None:
        """Listen no more."""
        logging.getLogger().removeHandler(self._handler)
