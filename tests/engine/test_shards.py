"""Shards of a cohort: how they are divided, and that it is the same training."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.engine.assignment import Job, Result
from fedcore.engine.shard_messages import (
    SCORES,
    ShardMessage,
    keeps_memory,
    message_of_scoring,
    message_of_shard,
    result_of_message,
)
from fedcore.engine.shards import split
from fedcore.problems.supervised import Score, Scoring
from fedcore.simulation.shard_member import ShardMember
from fedcore.testing import runs
from tests.algorithms.test_longhand import Langevin
from tests.builders.specifications import (
    ALGORITHMS,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    specification,
    suited,
)
from tests.engine.test_asynchronous import CASES as ASYNCHRONOUS
from tests.engine.test_networks import own
from tests.support.simulated_device import SimulatedDevice

pytestmark = pytest.mark.usefixtures("factories_allowed")

SMALL = merged(SYNTHETIC, {"local": {"lr": 0.05, "epochs": 1, "batch_size": 50}, "rounds": 3})
CASES: dict[str, Document] = {
    **{kind: merged(SMALL, suited(kind)) for kind in ALGORITHMS},
    **{f"asynchronous: {name}": document for name, document in ASYNCHRONOUS.items()},
    "schedule": {
        **QUADRATIC,
        "local": {"steps": 5, "lr_schedule": {"kind": "inverse_time", "mu": 1.0, "gamma": 8.0}},
        "rounds": 3,
    },
    "random numbers of a rule": merged(SMALL, {"algorithm": Langevin()}),
    "random numbers of a rule, asynchronous": merged(
        ASYNCHRONOUS["fedbuff"],
        {"algorithm": Langevin()},
    ),
    "median": merged(SMALL, {"aggregator": {"kind": "median"}}),
    "each client seen": merged(SMALL, {"evaluation": {"measures": ["client_drift"]}}),
}


class WorkOfSamples:
    """Work of which only the numbers of samples are known."""

    def __init__(self, samples: Sequence[int]) -> None:
        self.batches = [np.zeros((1, count), np.int64) for count in samples]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 20))
def test_shards_are_a_partition_in_which_none_has_more_than_one_client_too_many(
    samples: list[int], count: int
) -> None:
    work: Any = WorkOfSamples(samples)
    shards = split(work, count)
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(samples)))
    assert len(shards) == min(count, len(samples))
    load = [sum(samples[row] for row in rows) for rows in shards]
    # A client is only given to a shard that has no more than any other (Graham, 1969, Theorem 1).
    assert max(load) <= sum(samples) / len(shards) + max(samples)
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in shards)


def played(spec: ExperimentSpec) -> Simulation:
    simulation = Simulation(spec, seed=0)
    while not simulation.finished:
        simulation.advance()
    return simulation


def final(simulation: Simulation) -> Tensor:
    return torch.cat([value.flatten() for value in simulation.model().values()])


@pytest.mark.parametrize(
    "case",
    ["fedavg", "scaffold", "fedlin", "ifca", "asynchronous: own batch norm", "median", "each client seen"],
)
def test_shards_agree_with_the_whole_cohort(case: str) -> None:
    """Only the order of sums differs."""
    document = merged(CASES[case], {"execution": {"engine": "reference", "precision": "float64"}})
    whole = final(played(specification(document)))
    sharded = final(played(specification(document, execution={"shards": 3})))
    torch.testing.assert_close(sharded, whole, rtol=0, atol=1e-12)


class Elsewhere:
    """Trains the shards of a run in two other simulations of it, in turns, which get messages as bytes,
    and the last shards first.
    """

    def __init__(self, run: Simulation, spec: ExperimentSpec, device: str = "cpu") -> None:
        self.run = run
        self.others = [ShardMember(Simulation(spec, run.seed, device=device)) for _ in range(2)]
        self.keepers: dict[int, ShardMember] = {}
        """The last to train each client."""

    def __call__(self, shards: Sequence[Job]) -> list[Result]:
        return [self.train(shard) for shard in reversed(shards)][::-1]

    def train(self, shard: Job) -> Result:
        self.others.reverse()
        other, clients = self.others[0], shard.work.clients.tolist()
        kept = {client for client in clients if self.keepers.get(client) is other}
        message = message_to(self.run, shard, kept if keeps_memory(self.run.context.algorithm) else ())
        self.keepers |= dict.fromkeys(clients, other)
        return result_of_message(transmitted(other.answer(transmitted(message))), shard.work.local.x.device)


def message_to(run: Simulation, shard: Job, kept: Collection[int]) -> ShardMessage:
    return message_of_shard(shard, run.facts.choice.engine, run.state.server.adaptive_parameters, kept)


def transmitted(message: ShardMessage) -> ShardMessage:
    copies = {
        name: safetensors.torch.save({"": value.cpu().contiguous()})
        for name, value in message.tensors.items()
    }
    return ShardMessage(
        json.loads(json.dumps(message.header)),
        {name: safetensors.torch.load(data)[""] for name, data in copies.items()},
    )


EACH_MESSAGE = (
    "fedavg",
    "fedaware",  # an aggregator with a state
    "fedlin",  # gradients are exchanged first
    "fedrep",  # some layers are personal
    "apfl",  # a model of the client's own
    "ifca",  # several models
    "mimelite",  # shared vectors, and a full gradient
    "scaffold",  # memory, which the other side keeps
    "feddyn",  # memory that the server changes
    "pooled",  # a problem of one client
    *(case for case in CASES if case not in ALGORITHMS),
)
"""Between them, they send everything that a message may hold."""


@pytest.mark.parametrize(
    "case",
    [case if case in EACH_MESSAGE else pytest.param(case, marks=pytest.mark.nightly) for case in CASES],
)
def test_a_shard_trained_elsewhere_has_the_same_bits(case: str) -> None:
    spec = specification(CASES[case], execution={"shards": 3})
    here, there = played(spec), Simulation(spec, seed=0)
    there.share(Elsewhere(there, spec))
    while not there.finished:
        there.advance()
    assert there.checkpoint() == here.checkpoint()


def test_memory_that_the_other_side_keeps_is_not_sent() -> None:
    simulation = Simulation(specification(CASES["scaffold"], execution={"shards": 3}), seed=0)
    job = simulation.begin().job
    assert job is not None
    clients, memory = job.work.clients.tolist(), job.work.local.memory["control"]
    messages = [message_to(simulation, job, kept) for kept in (clients[:0], clients[:1], clients)]
    sizes = [sum(value.nbytes for value in message.tensors.values()) for message in messages]
    assert [sizes[0] - size for size in sizes] == [0, memory[0].nbytes, memory.nbytes]


@pytest.mark.parametrize("case", ["scaffold", "apfl"])
def test_shards_cross_between_devices(case: str) -> None:
    """Arrivals on the host are put where the run is, and the memory that was kept stays there."""
    spec = specification(CASES[case], execution={"shards": 3, "engine": "vectorised"})
    here = played(spec)
    with SimulatedDevice():
        there = Simulation(spec, seed=0, device="meta")
        there.share(Elsewhere(there, spec, "meta"))
        while not there.finished:
            there.advance()
        model = final(there).cpu()
    assert torch.equal(model, final(here))


LARGE_STEPS: Document = {
    "name": "evaluated in several batches",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 4},
        "model": {"kind": "cnn", "channels": [64, 64], "hidden": 8},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 1, "batch_size": 4},
    "execution": {"shards": 2, "engine": "reference"},
    "rounds": 2,
}
"""The convolutions of all samples take more memory than a batch may."""


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, True),
        ({"model": own("batch_normalised", batch_norm="average")}, True),
        ({"model": own("batch_normalised", batch_norm="local")}, False),
    ],
    ids=["plain", "averaged batch norm", "own batch norm"],
)
def test_a_model_scored_elsewhere_has_the_same_figures(changes: Document, shared: bool) -> None:
    """Clients that keep statistics to themselves are evaluated where these are."""
    spec = specification(
        LARGE_STEPS,
        problem=LARGE_STEPS["problem"] | changes,
        evaluation={"validation": {"share": 0.01}},
    )
    here, there, other = Simulation(spec, 0), Simulation(spec, 0), ShardMember(Simulation(spec, 0))
    sent: list[Scoring] = []

    def share(statistics: Tensor | None, _: Score, theta: Tensor, scoring: Scoring) -> Tensor:
        parts = scoring.divided(3)
        sent.extend(parts)
        messages = [transmitted(message_of_scoring(theta, part, statistics)) for part in parts]
        return torch.cat([transmitted(other.answer(message)).tensors[SCORES] for message in messages])

    there.share(score=lambda statistics: partial(share, statistics))
    for _ in range(2):
        ours, theirs = here.advance(), there.advance()
        assert replace(theirs, seconds=0) == replace(ours, seconds=0)
    assert {part.part for part in sent} == ({"train", "validation", "test"} if shared else set())
    # The convolutions of the first take more memory than a batch may.
    assert any(part.start > 0 for part in sent) is (not changes)


@pytest.mark.parametrize("case", ["scaffold", "asynchronous: own batch norm"])
def test_a_run_in_shards_goes_on_from_any_round_to_the_bit(case: str) -> None:
    runs.resumes_at_every_round(lambda: specification(CASES[case], execution={"shards": 2}))


def test_auto_is_eight_shards() -> None:
    assert specification(QUADRATIC, execution={"shards": "auto"}).execution.shard_count == 8
    assert specification(QUADRATIC).execution.shard_count is None
