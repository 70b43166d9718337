"""Experiments as workers would leave them: written through the store, or carried out on tiny
problems.
"""

from collections.abc import Callable, Sequence

import httpx

from fedcore.platform.artifacts import model_files
from fedcore.platform.storage import Storage
from fedcore.platform.store import Database, runs
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from tests.builders import claims
from tests.builders.claims import ONE_RUN, claim
from tests.builders.specifications import Document
from workers.claimed_run import model_key

TINY: Document = {**ONE_RUN, "name": "tiny", "tags": ["small"], "rounds": 3}
"""One run of three rounds."""

TWO_ARMS: Document = {**TINY, "name": "two arms", "seeds": [0, 1, 2], "sweep": {"local.lr": [0.1, 0.05]}}
"""Six runs of three rounds."""

MADE_WITH: Document = {"engine": "vectorised"}


def submit(http: httpx.Client, document: Document = TINY) -> Document:
    """Submit `document`; the experiment as answered."""
    answer = http.post("/v1/experiments", json=document)
    assert answer.status_code == 201, answer.text
    return answer.json()


def commit(database: Database, held: Claim, reports: Sequence[RoundReport]) -> Claim:
    """Commit a slice; the claim after it."""
    claims.record(database, held, reports)
    return held.at(reports[-1].round, claims.key(held, len(reports)))


def finish(
    database: Database,
    held: Claim,
    *,
    diverged_round: int | None = None,
    provenance: Document = MADE_WITH,
) -> None:
    """End a run well."""
    claims.write(
        database,
        runs.finish,
        held,
        model=model_key(held),
        provenance=provenance,
        diverged_round=diverged_round,
    )


def write(database: Database, history: Callable[[Claim], Sequence[RoundReport]], count: int) -> list[Claim]:
    """Take `count` runs in turn and end each with the rows that `history` gives it."""
    return [_write_one(database, history) for _ in range(count)]


def carry_out(database: Database, storage: Storage, count: int) -> None:
    """Take `count` runs in turn and play them for real, a round a slice, to their ends or their
    rungs.
    """
    for _ in range(count):
        held = claim(database)
        arm = ExperimentSpec.model_validate(held.spec).arms()[held.arm]
        simulation = Simulation(arm.spec, held.seed, arm=held.arm)
        if held.checkpoint is not None:
            with storage.open(held.checkpoint) as file:
                simulation.restore(file.read())
        while not simulation.finished and simulation.round < held.until:
            held = commit(database, held, [simulation.advance()])
            assert held.checkpoint is not None
            storage.put(held.checkpoint, simulation.checkpoint())
        files, digests = model_files(simulation, model_key(held), held.run_id, held.experiment_id)
        made_with = {**MADE_WITH, **digests}
        for key, data in files.items():
            storage.put(key, data)
        if simulation.finished:
            finish(database, held, provenance=made_with)
        else:
            claims.write(database, runs.pause_at_rung, held, model=model_key(held), provenance=made_with)


def _write_one(database: Database, history: Callable[[Claim], Sequence[RoundReport]]) -> Claim:
    held = claim(database)
    reports = history(held)
    held = commit(database, held, reports)
    finish(database, held, diverged_round=next((one.round for one in reports if one.diverged), None))
    return held
