"""Warms up an idle worker: loads the libraries and compiles the machine code that most runs need,
which would take a run some two seconds.

A first run is not kept waiting. The warm-up begins when a worker has been idle for a while, goes in
steps, and ends after the current step, most of whose work the run would have to do itself.
"""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedcore import ExperimentSpec, presets
from fedcore.data.plan import cohort_batches
from fedcore.platform.version import commit
from fedcore.simulation.simulation import Simulation
from fedcore.systems.work import Work

IDLE_S = 2.0
"""A worker that starts because there is work has it by then."""

log = logging.getLogger(__name__)


class WarmUp(threading.Thread):
    """A thread that plays a round of the demonstration for nobody."""

    def __init__(self, device: str, data_dir: Path) -> None:
        """On the worker's own device; nothing is read from `data_dir`."""
        super().__init__(name="warm-up", daemon=True)
        self._device, self._data_dir = device, data_dir
        self._over = threading.Event()

    def stop(self) -> None:
        """Begin no further step."""
        self._over.set()

    def run(self) -> None:
        """Step by step, until the worker has something to do."""
        if self._over.wait(IDLE_S):
            return
        try:
            for _ in self._steps():
                if self._over.is_set():
                    return
        except Exception:
            # Whatever it is, a run that needs it says so, to those who wait for it.
            log.warning("the warm-up ended early", exc_info=True)

    def _steps(self) -> Iterator[None]:
        commit()
        yield
        many = np.full(30, 300)
        cohort_batches(0, 1, np.arange(len(many)), many, [Work(30, 10)] * len(many))
        yield
        demo = presets.load("demo").spec
        for model in ({"kind": "logistic"}, demo["problem"]["model"]):
            document = demo | {"problem": demo["problem"] | {"model": model}, "rounds": 1}
            simulation = Simulation(
                ExperimentSpec.model_validate(document).arms()[0].spec,
                0,
                device=self._device,
                data_dir=self._data_dir,
            )
            yield
            simulation.advance()
            yield
