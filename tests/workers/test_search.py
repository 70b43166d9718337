"""Searches carried out by a worker in this process: runs are parked, promoted and stopped as the
library does it, to the bit.
"""

from collections import Counter
from hashlib import sha256

import pytest
import torch
from safetensors.torch import load, save

from fedcore import ExperimentSpec, run
from fedcore.platform.provenance import best_model_key
from fedcore.platform.store import Status, search
from fedcore.simulation.halving import Decision
from fedcore.simulation.report import StopReason
from fedcore.simulation.simulation import Simulation
from tests.builders.specifications import merged
from tests.simulation.test_searches import HALVING, SEARCH
from tests.workers.deployment import Deployment

SPEED = {"execution": {"engine": "reference"}, "seeds": [0]}


def decided(deployment: Deployment, experiment_id: str) -> set[tuple[int, int, str | None, int | None]]:
    with deployment.database.reading() as session:
        return {(one.arm, one.rung, one.verdict, one.rank) for one in search.arrivals(session, experiment_id)}


@pytest.mark.parametrize("kind", ["successive_halving", "asha"])
def test_a_worker_decides_what_the_library_does_and_every_model_is_that_of_the_arm_alone(
    embedded: Deployment, kind: str
) -> None:
    document = merged(SEARCH, SPEED | {"search": HALVING | {"kind": kind}})
    experiment = embedded.submit(document, nudge=False)
    looks = iter([False] * 7 + [True])
    # The first worker is asked to end in the middle; the other goes on from checkpoints.
    for stopping in (lambda: next(looks, True), lambda: False):
        with embedded.runner(stopping=stopping) as runner:
            runner.work()
    decisions: list[Decision] = []
    spec = ExperimentSpec.model_validate(document)
    played = Counter(report.arm for report in run(spec, decided=decisions.append))
    if kind == "successive_halving":
        assert decided(embedded, experiment) == {
            (one.arm, one.rung, one.verdict, one.rank) for one in decisions
        }
        assert {one.arm: one.done for one in embedded.runs(experiment)} == played
    for one in embedded.runs(experiment):
        assert one.status is Status.SUCCEEDED
        assert one.stop_reason is (None if one.done == 9 else StopReason.RUNG)
        assert [row.round for row in embedded.rows(one.id)] == list(range(1, one.done + 1))
        alone = Simulation(spec.arms()[one.arm].spec, 0)
        while alone.round < one.done:
            alone.advance()
        assert one.model is not None
        with embedded.storage.open(one.model) as file:
            stored = load(file.read())
        torch.testing.assert_close(stored, alone.model(), rtol=0, atol=0)
        assert one.provenance["model_sha256"] == sha256(save(stored)).hexdigest()
        best = best_model_key(one.model, one.provenance)
        assert best is not None
        with embedded.storage.open(best) as file:
            torch.testing.assert_close(load(file.read()), dict(alone.best_model()), rtol=0, atol=0)
        # The models of earlier rungs are gone.
        assert {key for key in embedded.storage.keys(one.id) if "model" in key} == {one.model, best}


def test_early_stopping_ends_a_run_in_the_same_round_as_in_the_library(embedded: Deployment) -> None:
    rule = {"metric": "suboptimality", "patience": 2, "min_delta": 0.05}
    document = merged(SEARCH, SPEED | {"search": None, "sweep": None, "rounds": 60, "early_stopping": rule})
    experiment = embedded.submit(document, nudge=False)
    with embedded.runner() as runner:
        runner.work()
    (last,) = [report for report in run(ExperimentSpec.model_validate(document)) if report.stopped]
    ended = embedded.run(experiment)
    assert (ended.status, ended.done, ended.stop_reason) == (
        Status.SUCCEEDED,
        last.round,
        StopReason.PATIENCE,
    )
    assert last.round < 60
    assert ended.model is not None
