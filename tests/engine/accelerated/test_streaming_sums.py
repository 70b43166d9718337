"""Sums of deltas that are taken while clients train: those of the deltas themselves, whoever trains
them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.engine.accelerated.compiled import compiled
from fedcore.engine.accelerated.streaming_sums import GROUPS, groups
from fedcore.engine.assignment import AggregatedUpdate, Job
from fedcore.engine.round import open_round
from tests.builders.specifications import COMPILED, SYNTHETIC, Document, merged, specification

MANY: Document = merged(
    SYNTHETIC,
    {
        "problem": {"dataset": {"clients": 3 * GROUPS}},
        "participation": {"clients_per_round": 2 * GROUPS + 5},
    },
)
"""Several clients in a group."""


def simulated(**changes: Any) -> Simulation:
    return Simulation(specification(MANY, execution={"engine": "compiled"}, **changes), seed=0)


def job_of(simulation: Simulation, *, each: bool) -> Job:
    opened = open_round(simulation.context, simulation.state, 1, each=each)
    assert opened.job is not None
    return opened.job


def summed(job: Job) -> AggregatedUpdate:
    (result,) = compiled([job])
    assert isinstance(result, AggregatedUpdate)
    return result


def model(simulation: Simulation) -> Tensor:
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


def test_streaming_sums_are_the_sums_of_the_deltas() -> None:
    job = job_of(simulated(), each=True)
    assert job.sums is not None
    job = replace(
        job, sums=torch.cat([job.sums, torch.linspace(-1, 2, job.sums.shape[1]).to(job.sums)[None]])
    )
    result = summed(job)
    assert result.deltas is not None
    assert job.sums is not None
    torch.testing.assert_close(result.sums, job.sums @ result.deltas, rtol=0, atol=1e-13)
    plain = compiled([replace(job, sums=None)])[0]
    assert not isinstance(plain, AggregatedUpdate)
    assert torch.equal(result.deltas, plain.delta)


def test_seeing_each_delta_changes_no_bit() -> None:
    unseen, seen = (summed(job_of(simulated(), each=each)) for each in (False, True))
    assert unseen.deltas is None
    assert torch.equal(unseen.sums, seen.sums)
    drift = {"evaluation": {"measures": ["train_loss", "client_drift"]}}
    assert torch.equal(model(simulated()), model(simulated(**drift)))


def test_threads_and_company_change_no_bit(two_threads: None) -> None:
    job, other = job_of(simulated(), each=False), job_of(simulated(local={"epochs": 3}), each=False)
    both = compiled([other, job])[1]
    torch.set_num_threads(1)
    assert isinstance(both, AggregatedUpdate)
    assert torch.equal(both.sums, summed(job).sums)


@pytest.mark.parametrize("kind", COMPILED)
def test_only_those_are_summed_that_send_deltas_alone(kind: str) -> None:
    wanted = job_of(simulated(algorithm={"kind": kind}), each=False)
    sums = {
        "fedavg",
        "fedprox",
        "fednova",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedlin",
        "pooled",
        "fedsvrg",
        "feddane",
        "ifca",
    }
    assert (wanted.sums is not None) == (kind in sums)
    assert wanted.each == (wanted.sums is None)


def test_a_compressed_uplink_wants_each_delta() -> None:
    compressed = {"uplink": {"kind": "top_k", "k": 3}}
    assert job_of(simulated(compression=compressed), each=False).each
    # Gradients are compressed there, not deltas.
    assert not job_of(simulated(algorithm={"kind": "fedlin"}, compression=compressed), each=False).each


@pytest.mark.parametrize(
    "work", [[5], [9, 1, 1, 1], [4, 4, 4, 4, 4, 4, 4], [100, 50, 30, 5, 4, 3, 2, 1, 1, 1], [1] * 50]
)
@pytest.mark.parametrize("most", [3, GROUPS])
def test_groups_have_about_equal_work(work: list[int], most: int) -> None:
    done = np.array(work, np.int64)
    starts = groups(done, most)
    assert (starts[0], starts[-1]) == (0, len(work))
    held = np.add.reduceat(done, starts[:-1])
    assert held.sum() == done.sum()
    assert len(held) <= most
    assert held.max() <= done.sum() / most + done.max()
