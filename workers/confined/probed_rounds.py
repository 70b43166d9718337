"""Rounds of a specification with a code bundle, played in its confinement for the estimate of a plan
(`fedq.planning.probe`), as a worker would play them.
"""

import os
from time import monotonic

from fedcore.errors import (
    BusyError,
    DataUnavailableError,
    SpecificationError,
    StorageError,
    UserCodeError,
)
from fedcore.platform.storage import Storage
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedq.planning.probe import ROUNDS, Probe
from workers.confined.answers import round_of, state_of
from workers.confined.confinement import ConfinementError
from workers.confined.sandbox import Sandbox, Session
from workers.confined.uploads import copy_datasets
from workers.embedded import gpus

REASONS = (
    BusyError,
    ConfinementError,
    DataUnavailableError,
    MemoryError,
    SpecificationError,
    StorageError,
    UserCodeError,
)


def play(
    archive: bytes,
    spec: ExperimentSpec,
    settings: Settings,
    storage: Storage,
    limit_s: float,
    load_s: float,
) -> Probe:
    """Play up to ROUNDS rounds of the first arm and seed, for at most `limit_s` seconds after at most
    `load_s` seconds of loading. Uploaded data sets come from `storage`.
    """
    device = settings.device
    if device == "auto":
        device = "cuda" if gpus.devices(os.environ, gpus.listing()) else "cpu"
    start = {
        "do": "start",
        "spec": spec.model_dump(mode="json"),
        "arm": 0,
        "seed": spec.seeds[0],
        "device": device,
        "threads": settings.torch_threads,
        "recorded": None,
        "memory_divisor": 1,
    }
    try:
        with Sandbox(archive, settings, device) as sandbox:
            copy_datasets(sandbox, storage, [spec.arms()[0].spec.problem.dataset])
            session = sandbox.session()
            try:
                state_of(session.request(start, load_s, clock_s=load_s).fields)
                return _played(session, spec.rounds, limit_s)
            finally:
                session.close()
    except REASONS as error:
        return Probe(reason=" ".join(str(error).split()))


def _played(session: Session, rounds: int, limit_s: float) -> Probe:
    began, seconds = monotonic(), list[float]()
    while len(seconds) < min(rounds, ROUNDS) and (left_s := began + limit_s - monotonic()) > 0:
        started = monotonic()
        try:
            _, state = round_of(session.request({"do": "advance"}, left_s, clock_s=left_s).fields)
        except (BusyError, UserCodeError):
            if monotonic() - started < left_s:
                raise
            break
        seconds.append(monotonic() - started)
        if state.diverged or state.stopped is not None:
            break
    return Probe.of(seconds) if seconds else Probe(monotonic() - began, at_least=True)
