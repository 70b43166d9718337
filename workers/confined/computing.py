"""The computing side: load a bundle, and answer the requests of one session.

| request | answer |
| --- | --- |
| `start` | loads the run's problem; state |
| `restore`, with a checkpoint | state |
| `advance` | report of the round and state |
| `checkpoint`, `model`, `best_model` | bytes |
| `call` | value of a function of CALLS |
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor

from fedcore import ExperimentSpec, bundles
from fedcore.block import Block
from fedcore.data.uploaded import LocalDatasetStorage
from fedcore.engine.choice import EngineChoice
from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError
from fedcore.settings import settings
from fedcore.simulation.out_of_memory import is_out_of_memory
from fedcore.simulation.simulation import Simulation
from fedcore.spec.components import FAMILIES, find_outermost
from fedcore.spec.engines import facts_about
from fedcore.testing.checks import CHECKS, ComponentCheck, results_of
from fedcore.testing.subject import subject_of
from fedcore.user_traceback import MAX_LENGTH, user_traceback
from fedq.planning.estimates import RunEstimate, estimate_runs
from fedq.validation_errors import MAX_FLAWS, errors_of
from workers.confined.answers import ReportedState
from workers.confined.limits import BUNDLE, UPLOADS
from workers.confined.protocol import Channel, Message

Components = Mapping[str, Mapping[str, type[Block]]]


def components(found: Components, _: Any) -> dict[str, list[str]]:
    """The kinds of a bundle, by family."""
    return {family: sorted(kinds) for family, kinds in found.items()}


CHECK_S = 7.0
"""Processor time after which no further check of a bundle is started."""


def check(found: Components, _: Any) -> dict[str, Any]:
    """The kinds of a bundle, by family, and the findings in its components that compute, by as many
    checks as fit into CHECK_S. Documentation is left to `fedq check-extension`.
    """
    began, flaws, told = time.process_time(), [], set[tuple[str, str]]()
    for family, members in found.items():
        for member in members.values():
            subject = subject_of(member, family, settings().datasets)
            checks = (
                ComponentCheck(subject, function)
                for function in CHECKS.get(family, ())
                if time.process_time() - began <= CHECK_S
            )
            for _, finding in results_of(checks):
                # One mistake may fail several components.
                if finding is not None and (finding.place, finding.found) not in told:
                    told.add((finding.place, finding.found))
                    place = (finding.file or "").rpartition(f"/{BUNDLE}/")[2] or None
                    short = finding.model_copy(update={"file": place})
                    flaws.append(_flaw("code", str(short)))
    return {"components": components(found, None), "flaws": flaws[:MAX_FLAWS]}


def prepare(found: Components, document: Any) -> dict[str, Any]:
    """Validate a specification that uses the bundle: the fields of the bundle's components by the pointer
    to their block, and an estimate of each arm; or the errors in it.
    """
    try:
        spec = ExperimentSpec.model_validate(document)
    except ValidationError as error:
        flaws = errors_of(error.errors()[:MAX_FLAWS], ExperimentSpec, document)
        return {"flaws": [_flaw(flaw.pointer, flaw.detail) for flaw in flaws]}
    own = {member for members in found.values() for member in members.values()}
    return {
        "flaws": [],
        "components": {
            pointer: component.model_dump(mode="json")
            for pointer, component in find_outermost(spec, lambda block: type(block) in own)
        },
        "estimates": _ESTIMATES.dump_python(estimate_runs(spec), mode="json"),
    }


def _flaw(pointer: str, detail: str) -> dict[str, str]:
    return {"pointer": pointer[:MAX_LENGTH], "detail": detail[:MAX_LENGTH]}


_ESTIMATES = TypeAdapter(list[RunEstimate])


CALLS: Mapping[str, Callable[[Components, Any], Any]] = {
    "components": components,
    "check": check,
    "prepare": prepare,
}
"""Functions that may be called with the bundle's components and a JSON value, by name."""


class Computing:
    """One session with the bundle in `folder`."""

    def __init__(self, descriptor: int, folder: Path) -> None:
        """`descriptor` belongs to a connected socket."""
        self._channel = Channel(socket.socket(fileno=descriptor))
        self._folder = folder
        self._found: Components | None = None
        self._simulation: Simulation | None = None
        self._requests: Mapping[str, Callable[[Message], Message]] = {
            "start": self._start,
            "restore": self._restore,
            "advance": lambda _: self._advance(),
            "checkpoint": lambda _: Message({}, self._run.checkpoint()),
            "model": lambda _: _message_of(self._run.model()),
            "best_model": lambda _: _message_of(self._run.best_model()),
            "call": self._call,
        }

    def serve(self) -> None:
        """Answer requests until the other side is gone."""
        while True:
            try:
                request = self._channel.receive(None)
            except (EOFError, OSError):
                return
            try:
                answer = self._requests[request.fields["do"]](request)
            except BaseException as error:
                answer = Message({"error": self._described(error)})
            try:
                self._channel.send(*answer)
            except OSError:
                return

    def _load(self) -> Components:
        if self._found is None:
            bases = {name: family.base for name, family in FAMILIES.items()}
            self._found = bundles.load(self._folder / BUNDLE, bases)
            for name, members in self._found.items():
                for member in members.values():
                    FAMILIES[name].note_class(member)
        return self._found

    def _start(self, request: Message) -> Message:
        self._load()
        run = request.fields
        spec = ExperimentSpec.model_validate(run["spec"])
        self._simulation = Simulation(
            spec.arms()[run["arm"]].spec,
            run["seed"],
            arm=run["arm"],
            device=run["device"],
            data_dir=settings().datasets,
            models_allowed=settings().models_allowed,
            storage=LocalDatasetStorage(self._folder / UPLOADS),
            weights_dir=self._folder / UPLOADS,
            arms=facts_about(spec),
            choice=EngineChoice.of(run["recorded"]),
            memory_divisor=run["memory_divisor"],
        )
        return Message({"state": self._state()})

    def _restore(self, request: Message) -> Message:
        self._run.restore(request.data)
        return Message({"state": self._state()})

    def _advance(self) -> Message:
        report = asdict(self._run.advance())
        return Message({"report": report, "state": self._state()})

    def _call(self, request: Message) -> Message:
        called = CALLS[request.fields["name"]]
        return Message({"value": called(self._load(), request.fields["document"])})

    @property
    def _run(self) -> Simulation:
        assert self._simulation is not None
        return self._simulation

    def _state(self) -> dict[str, Any]:
        known = asdict(self._run.facts)
        known["choice"] = self._run.facts.choice.document()
        return {name: known[name] for name in ReportedState.model_fields}

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
                return {"kind": "memory", "detail": str(error)}
            case _:
                described = user_traceback(error, self._folder / BUNDLE)
                return {"kind": "code", "error": described.document()}


def _message_of(parameters: Mapping[str, Tensor]) -> Message:
    return Message(
        {}, save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in parameters.items()})
    )
