"""A run that is computed by a computing process, with the interface of `Simulation` as far as workers
use it: lease, fence, rows and checkpoints are the same.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from safetensors.torch import load
from torch import Tensor

from fedcore.engine.choice import EngineChoice
from fedcore.platform.provenance import ENGINE_CHOICE
from fedcore.platform.store.leases import Claim
from fedcore.simulation.best_round import BestRound
from fedcore.simulation.computed_run import ComputedRun, RunFacts
from fedcore.simulation.out_of_memory import MEMORY_DIVISOR
from fedcore.simulation.report import RoundReport
from workers.confined.answers import ReportedState, expect_data_alone, round_of, state_of
from workers.confined.protocol import Message, ProtocolError
from workers.confined.sandbox import Sandbox

MAX_NAME_LENGTH = 1_000
"""Maximum length of the name of a parameter."""


class ConfinedSimulation(ComputedRun):
    """One run of a bundle; `close` ends its computing process.

    Every answer is checked before it is used. Errors of the
    bundle are UserCodeError; errors of the specification, the data, the checkpoint and of memory are the
    same as of `Simulation`. Once `is_lost`, the computing process is ended, and what waits for it raises
    StaleLeaseError.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        claim: Claim,
        device: str,
        round_s: float,
        bundle: Mapping[str, Any],
        is_lost: Callable[[], bool],
    ) -> None:
        """Load the problem and stop before the first round.

        A round and loading the data may take `round_s` seconds each. `bundle` describes the bundle and its
        confinement, for provenance.
        """
        self._claim, self._round_s, self.bundle = claim, round_s, bundle
        self._session = sandbox.session(is_lost)
        request = {
            "do": "start",
            "spec": claim.spec,
            "arm": claim.arm,
            "seed": claim.seed,
            "device": device,
            "recorded": claim.provenance.get(ENGINE_CHOICE),
            "memory_divisor": MEMORY_DIVISOR**claim.shortages,
        }
        try:
            self._take(state_of(self._request(request).fields), 0)
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> RunFacts:
        """The facts as of the last answer, without the accuracy of chance: labels are on the other side."""
        return self._facts

    def advance(self) -> RoundReport:
        """Play the next round and report it, with the time that it took here."""
        began = time.perf_counter()
        report, state = round_of(self._request({"do": "advance"}).fields)
        seconds = time.perf_counter() - began
        about = (report.arm, report.seed, report.round, report.diverged, report.stopped)
        if about != (self._claim.arm, self._claim.seed, state.round, state.diverged, state.stopped):
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
        return self._session.request(fields, self._round_s, data)

    def _take(self, state: ReportedState, round: int | None) -> None:
        """Note the state after `round`; None: after any."""
        choice = EngineChoice.of(state.choice.model_dump())
        if choice is None or state.round > self._claim.rounds or round not in (None, state.round):
            raise ProtocolError("the bundle's process reported a round or an engine that cannot be")
        known = state.model_dump() | {
            "choice": choice,
            "best": None if state.best is None else BestRound(**state.best.model_dump()),
        }
        self._facts = RunFacts(rounds=self._claim.rounds, **known)
