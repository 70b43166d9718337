"""The computing side: load a bundle, and answer the requests of one session.

| request | answer |
| --- | --- |
| `start` | loads the run's problem; state |
| `restore`, with a checkpoint | state |
| `advance` | report of the round and state |
| `checkpoint`, `model` | bytes |
| `call` | value of a function of CALLS |
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedcore import ExperimentSpec, bundles
from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.server import SERVERS
from fedcore.block import Block
from fedcore.compression import COMPRESSORS
from fedcore.data.partition import PARTITIONS
from fedcore.data.user_datasets import LocalDatasetStorage
from fedcore.engine.choice import EngineChoice
from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError
from fedcore.families import Family
from fedcore.models import MODELS
from fedcore.platform.out_of_memory import is_out_of_memory, user_message
from fedcore.settings import settings
from fedcore.simulation.simulation import Simulation
from fedcore.systems.availability import AVAILABILITIES
from fedcore.systems.clock import RATES
from fedcore.systems.participation import PARTICIPATIONS
from fedcore.systems.work import BATCH_DISTRIBUTIONS, STEP_DISTRIBUTIONS
from fedcore.user_traceback import user_traceback
from workers.confined.protocol import Channel

BUNDLE, UPLOADS = "bundle", "uploads"
"""Folders of what a session is given: the bundle's files, and uploaded data sets by digest."""
FAMILIES: tuple[Family[Any], ...] = (
    ALGORITHMS,
    SERVERS,
    PARTITIONS,
    PARTICIPATIONS,
    AVAILABILITIES,
    STEP_DISTRIBUTIONS,
    BATCH_DISTRIBUTIONS,
    RATES,
    COMPRESSORS,
    MODELS,
)
CALLS: Mapping[str, str] = {"components": "workers.confined.computing:components"}
"""Functions that may be called with the bundle's components and a JSON value, by name; their import
paths.
"""
Components = Mapping[str, Mapping[str, type[Block]]]
Answer = tuple[dict[str, Any], bytes]


def components(found: Components, document: Any) -> dict[str, list[str]]:
    """The kinds of a bundle, by family."""
    return {family: sorted(kinds) for family, kinds in found.items()}


class Computing:
    """One session with the bundle in `folder`."""

    def __init__(self, descriptor: int, folder: Path) -> None:
        """`descriptor` is that of a connected socket."""
        # The other side is trusted, and sends checkpoints of any size.
        self._channel = Channel(socket.socket(fileno=descriptor), 2**63)
        self._folder = folder
        self._found: Components | None = None
        self._simulation: Simulation | None = None
        self._requests: Mapping[str, Callable[[dict[str, Any], bytes], Answer]] = {
            "start": self._start,
            "restore": self._restore,
            "advance": self._advance,
            "checkpoint": self._checkpoint,
            "model": self._model,
            "call": self._call,
        }

    def serve(self) -> None:
        """Answer requests until the other side is gone."""
        while True:
            try:
                fields, data = self._channel.receive()
            except (EOFError, OSError):
                return
            try:
                answer, sent = self._requests[fields["do"]](fields, data)
            except BaseException as error:  # noqa: BLE001 - users' code may raise SystemExit
                answer, sent = {"error": self._described(error)}, b""
            self._channel.send(answer, sent)

    def _load(self) -> Components:
        if self._found is None:
            self._found = bundles.load(
                self._folder / BUNDLE, {family.name: family.base for family in FAMILIES}
            )
            for family in FAMILIES:
                for member in self._found.get(family.name, {}).values():
                    family.note_class(member)
        return self._found

    def _start(self, fields: dict[str, Any], data: bytes) -> Answer:
        torch.set_num_threads(fields["threads"])
        self._load()
        arm = ExperimentSpec.model_validate(fields["spec"]).arms()[fields["arm"]]
        self._simulation = Simulation(
            arm.spec,
            fields["seed"],
            arm=fields["arm"],
            device=fields["device"],
            data_dir=settings().data_dir,
            shelf=LocalDatasetStorage(self._folder / UPLOADS),
            recorded=EngineChoice.of(fields["recorded"]),
            memory_divisor=fields["memory_divisor"],
        )
        return self._state(), b""

    def _restore(self, fields: dict[str, Any], data: bytes) -> Answer:
        self._started.restore(data)
        return self._state(), b""

    def _advance(self, fields: dict[str, Any], data: bytes) -> Answer:
        report = asdict(self._started.advance())
        return {"report": report, **self._state()}, b""

    def _checkpoint(self, fields: dict[str, Any], data: bytes) -> Answer:
        return {}, self._started.checkpoint()

    def _model(self, fields: dict[str, Any], data: bytes) -> Answer:
        named = self._started.model().items()
        return {}, save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in named})

    def _call(self, fields: dict[str, Any], data: bytes) -> Answer:
        module, _, function = CALLS[fields["name"]].partition(":")
        return {"value": getattr(import_module(module), function)(self._load(), fields["document"])}, b""

    @property
    def _started(self) -> Simulation:
        assert self._simulation is not None
        return self._simulation

    def _state(self) -> dict[str, Any]:
        simulation = self._started
        return {
            "state": {
                "round": simulation.round,
                "diverged": simulation.diverged,
                "stopped": simulation.stopped,
                "choice": simulation.choice.document(),
                "batched_runs": simulation.batched_runs,
                "memory_divisor": simulation.memory_divisor,
                "precision": simulation.spec.precision,
                "data_source": simulation.data_source,
                "data_sha256": simulation.data_sha256,
            }
        }

    def _described(self, error: BaseException) -> dict[str, Any]:
        """The error for the other side, which raises one of the same meaning."""
        match error:
            case SpecificationError():
                return {"kind": "specification", "pointer": error.pointer, "detail": error.detail}
            case DataUnavailableError():
                return {"kind": "data", "detail": str(error)}
            case CheckpointError():
                return {"kind": "checkpoint", "detail": str(error)}
            case _ if is_out_of_memory(error):
                return {"kind": "memory", "detail": user_message(error)}
            case _:
                described = user_traceback(error, self._folder / BUNDLE)
                return {"kind": "code", "error": described.document()}
