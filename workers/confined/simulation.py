"""A run that is computed by a computing process, with the interface of `Simulation` as far as workers
use it: lease, fence, rows and checkpoints are the same.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from safetensors.torch import load
from torch import Tensor

from fedcore.engine.choice import EngineChoice
from fedcore.engine.engines import EngineName
from fedcore.simulation.best_round import BestRound
from fedcore.simulation.report import RoundReport, StopReason
from workers.confined.answers import RunState, expect_data_alone, round_of, state_of
from workers.confined.protocol import Message, ProtocolError
from workers.confined.sandbox import Sandbox

MAX_NAME_LENGTH = 1_000
"""Maximum length of the name of a parameter."""


@dataclass(frozen=True, slots=True)
class ConfinedRun:
    """A run as the computing process is told of it."""

    spec: Mapping[str, Any]
    """The experiment's specification, sweep and all."""
    arm: int
    seed: int
    rounds: int
    device: str
    recorded: Mapping[str, Any] | None
    """The engine of earlier rounds."""
    memory_divisor: int
    round_s: float
    """Maximum time for one round, and for loading the data."""
    bundle: Mapping[str, Any]
    """The bundle and its confinement, for provenance."""


class ConfinedSimulation:
    """One run of a bundle; `close` ends its computing process.

    Every answer is checked before it is used. Errors of the bundle are UserCodeError; errors of the
    specification, the data, the checkpoint and of memory are the same as of `Simulation`. Once
    `is_lost`, the computing process is ended, and what waits for it raises StaleLeaseError.
    """

    batched_runs = 1
    benefits_from_batching = False

    def __init__(self, sandbox: Sandbox, run: ConfinedRun, is_lost: Callable[[], bool]) -> None:
        """Load the problem and stop before the first round."""
        self._run, self._session = run, sandbox.session(is_lost)
        request = {
            "do": "start",
            "spec": dict(run.spec),
            "arm": run.arm,
            "seed": run.seed,
            "device": run.device,
            "recorded": run.recorded,
            "memory_divisor": run.memory_divisor,
        }
        try:
            self._take(state_of(self._request(request).fields), 0)
        except BaseException:
            self.close()
            raise

    @property
    def bundle(self) -> Mapping[str, Any]:
        """The bundle and its confinement, for provenance."""
        return self._run.bundle

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._state.round

    @property
    def diverged(self) -> bool:
        """True if the model is no longer finite."""
        return self._state.diverged

    @property
    def finished(self) -> bool:
        """True if all rounds are done, or the run has diverged or was stopped early."""
        return self.diverged or self._state.stopped is not None or self.round >= self._run.rounds

    @property
    def stopped(self) -> StopReason | None:
        """Why the run ended before its last round; None if it did not, or diverged."""
        return self._state.stopped

    @property
    def choice(self) -> EngineChoice:
        """The engine, and how it was chosen."""
        return self._choice

    @property
    def engine(self) -> EngineName:
        """The engine of the run."""
        return self._choice.engine

    @property
    def memory_divisor(self) -> int:
        """The least factor by which the number of clients trained at once has been reduced."""
        return self._state.memory_divisor

    @property
    def precision(self) -> str:
        """`float32` or `float64`."""
        return self._state.precision

    @property
    def data_source(self) -> str:
        """The actual data, for provenance."""
        return self._state.data_source

    @property
    def data_sha256(self) -> str | None:
        """Digest of the data; None for generated data."""
        return self._state.data_sha256

    @property
    def chance_accuracy(self) -> None:
        """Unknown: the labels are on the other side."""

    @property
    def noise_multiplier(self) -> float | None:
        """z of differential privacy; see `Simulation.noise_multiplier`."""
        return self._state.noise_multiplier

    @property
    def divergence(self) -> str | None:
        """Where a number was first not finite, as `Simulation.divergence` says."""
        return self._state.divergence

    @property
    def best(self) -> BestRound | None:
        """The best evaluated round so far; see `Simulation.best`."""
        best = self._state.best
        return None if best is None else BestRound(best.metric, best.round, best.value)

    def advance(self) -> RoundReport:
        """Play the next round and report it, with the time that it took here."""
        began = time.perf_counter()
        report, state = round_of(self._request({"do": "advance"}).fields)
        seconds = time.perf_counter() - began
        about = (report.arm, report.seed, report.round, report.diverged, report.stopped)
        if about != (self._run.arm, self._run.seed, state.round, state.diverged, state.stopped):
            raise ProtocolError("the bundle's process reported another run or round than it was asked for")
        self._take(state, self.round + 1)
        return replace(report, seconds=seconds)

    def checkpoint(self) -> bytes:
        """Return the whole state of the run, which only a computing process reads."""
        return self._data("checkpoint")

    def restore(self, data: bytes) -> None:
        """Restore the state of `checkpoint`; raises CheckpointError."""
        self._take(state_of(self._request({"do": "restore"}, data).fields, restored=True), None)

    def model(self) -> dict[str, Tensor]:
        """Return the global model's parameters, by the names of its module."""
        return self._parameters("model")

    def best_model(self) -> dict[str, Tensor]:
        """Parameters of the best model; see `Simulation.best_model`."""
        return self._parameters("best_model")

    def close(self) -> None:
        """End the computing process."""
        self._session.close()

    def _parameters(self, name: str) -> dict[str, Tensor]:
        data = self._data(name)
        try:
            parameters = load(data)
        except MemoryError:
            raise
        except Exception as error:  # The library raises errors of any class for malformed bytes.
            raise ProtocolError(f"the bundle's process sent a model that cannot be read: {error}") from None
        for parameter in parameters:
            if not parameter.isprintable() or len(parameter) > MAX_NAME_LENGTH:
                raise ProtocolError(f"no name of a parameter can be read: {parameter!r}")
        return parameters

    def _data(self, name: str) -> bytes:
        answer = self._request({"do": name})
        expect_data_alone(answer.fields)
        if not answer.data:
            raise ProtocolError(f"the bundle's process sent no {name.replace('_', ' ')}")
        return answer.data

    def _request(self, fields: Mapping[str, Any], data: bytes = b"") -> Message:
        return self._session.request(fields, self._run.round_s, data)

    def _take(self, state: RunState, round: int | None) -> None:
        """Note the state after `round`; None: after any."""
        choice = EngineChoice.of(state.choice.model_dump())
        if choice is None or state.round > self._run.rounds or round not in (None, state.round):
            raise ProtocolError("the bundle's process reported a round or an engine that cannot be")
        self._state, self._choice = state, choice
