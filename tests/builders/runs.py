"""Runs with the files that workers store: made up, or trained on tiny problems."""

from hashlib import sha256

import torch
from safetensors.torch import save

from fedcore.platform.artifacts import model_files
from fedcore.platform.storage import Storage
from fedcore.platform.store import Database, runs
from fedcore.platform.store.leases import Claim
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from tests.builders.claims import MADE_WITH, claim, commit, end_run
from tests.builders.transactions import write
from workers.claimed_run import model_key


def finish_with_models(database: Database, storage: Storage, held: Claim) -> list[str]:
    """Play what is left of a run, and end it with a final model and a best one; returns their keys."""
    keys = [f"{held.run_id}/{name}" for name in ("model.safetensors", "best-model.safetensors")]
    digests = []
    for place, key in enumerate(keys):
        # Other than the metadata, so long that it is sent in pieces.
        model = {"größe": torch.full((700_000,), float(place)), "a": torch.ones(3, dtype=torch.float16)}
        storage.put(key, save(model, {"format": "pt", "run": held.run_id}))
        digests.append(sha256(save(model)).hexdigest())
    provenance = {"engine": "vectorised", "model_sha256": digests[0], "best_model": {"sha256": digests[1]}}
    ended = commit(database, held, held.rounds - held.done)
    end_run(database, ended, model=keys[0], provenance=provenance)
    return keys


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
            end_run(database, held, model=model_key(held), provenance=made_with)
        else:
            write(database, runs.pause_at_rung, held, model=model_key(held), provenance=made_with)
