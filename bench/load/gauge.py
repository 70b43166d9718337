"""Processor time and memory of the service's processes under load."""

import time

from bench.load.asking import Times
from bench.load.service import Service


class Gauge:
    """Reads the processes' clocks. Changes in place."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.reset()

    def reset(self) -> None:
        """Measure from now on."""
        self._at, self._used = time.perf_counter(), self._service.processor()

    def row(self, what: str, times: Times, per_second: str = "", *, keep: bool = False) -> list[str]:
        """Return a row of the table (rate, times, busy cores and memory since the last row), or
        `keep` it open for the next.
        """
        seconds, used = time.perf_counter() - self._at, self._service.processor()
        cores = [f"{(now - before) / seconds:.2f}" for now, before in zip(used, self._used, strict=True)]
        if not keep:
            self.reset()
        quantiles = [f"{times.milliseconds(share):.1f}" if times.seconds else "" for share in (0.5, 0.99)]
        megabytes = [f"{size:.0f}" for size in self._service.memory()]
        row = [what, per_second or f"{times.per_second:,.0f}", *quantiles, *cores, *megabytes]
        print(*row, sep="  ", flush=True)
        return row
