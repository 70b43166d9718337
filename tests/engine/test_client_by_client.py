"""Clients on cores of their own: the same as the loop, on any number of them."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.core import ClientUpdate
from fedcore.engine.assignment import AggregatedUpdate, Job, Result, SummedUpdates
from fedcore.engine.client_by_client import parallel
from fedcore.engine.round import open_round
from fedcore.errors import DataUnavailableError
from fedcore.problems import TrainingProblem
from fedcore.problems.base import Gradient
from fedcore.problems.network import STATISTICS
from tests.builders.specifications import DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, merged, specification

SINGLE: Document = {
    "execution": {"precision": "float32"},
    "local": {"lr": 0.05, "steps": 5, "batch_size": 16},
}
GROUPS: Document = {"problem": {"model": {"norm": "group"}}}
"""A model that is differentiated automatically, where `cnn` without them is by hand."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Afterwards as many as there were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(engine: str, document: Document, threads: int = 1) -> Tensor:
    torch.set_num_threads(threads)
    simulation = Simulation(specification(document, execution={"engine": engine}), seed=0)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param(GROUPS, marks=pytest.mark.nightly)],
    ids=["by hand", "automatically"],
)
@pytest.mark.parametrize(
    "kind",
    [
        "fedavg",
        "fedlin",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("scaffold", "fedsvrg")),
    ],
)
def test_parallel_engine_is_the_loop(kind: str, changes: Document) -> None:
    document = merged(
        DIGITS_CNN, {"algorithm": {"kind": kind}, "local": {"optimizer": {"momentum": 0.9}}, **changes}
    )
    torch.testing.assert_close(
        trained("parallel", document, threads=2), trained("reference", document), rtol=0, atol=1e-11
    )


def test_noise_is_added_as_in_the_loop() -> None:
    noisy = merged(QUADRATIC, {"problem": {"dataset": {"gradient_noise": 0.5}}})
    torch.testing.assert_close(trained("parallel", noisy), trained("reference", noisy), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_in_single_precision_it_is_the_loop_to_rounding() -> None:
    parallel, reference = (
        trained(engine, merged(DIGITS_CNN, SINGLE)) for engine in ("parallel", "reference")
    )
    torch.testing.assert_close(parallel, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, GROUPS], ids=["by hand", "automatically"])
def test_threads_change_no_bit_and_stay_as_they_were(changes: Document) -> None:
    document = merged(DIGITS_CNN, merged(SINGLE, changes))
    together = trained("parallel", document, threads=2)
    assert torch.get_num_threads() == 2
    assert torch.equal(trained("parallel", document), together)


def test_threads_change_no_bit_of_full_gradients() -> None:
    problem = job(merged(DIGITS_CNN, SINGLE)).problem
    torch.set_num_threads(2)
    together = problem.client_gradients(problem.initial(), np.arange(4))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(problem.client_gradients(problem.initial(), np.arange(4)), together)


def job(document: Document, *, each: bool = True, **changes: Any) -> Job:
    simulation = Simulation(specification(document, **changes), seed=0)
    opened = open_round(simulation.context, simulation.state, 1, each=each)
    assert opened.job is not None
    return opened.job


def numbers(result: Result) -> list[Tensor]:
    """All that an engine returns."""
    if isinstance(result, AggregatedUpdate):
        return [result.sums, *([] if result.deltas is None else [result.deltas])]
    return [result.delta, *result.memory.values(), *result.shared.values()]


def test_jobs_side_by_side_are_trained_as_if_alone() -> None:
    torch.set_num_threads(2)
    jobs = [
        job(merged(DIGITS_CNN, SINGLE)),
        job(SYNTHETIC, each=False),
        job(DIGITS_CNN, algorithm={"kind": "fedprox"}),
        job(DIGITS_CNN),
    ]
    for together, alone in zip(parallel(jobs), (parallel([one])[0] for one in jobs), strict=True):
        assert list(map(torch.equal, numbers(together), numbers(alone))) == [True] * len(numbers(alone))


def test_sums_are_those_of_the_deltas_and_the_same_whoever_is_done_first() -> None:
    wanted = job(SYNTHETIC)
    assert wanted.sums is not None
    weights = torch.cat([wanted.sums, torch.linspace(-1, 2, wanted.sums.shape[1])[None]])
    rows = range(len(wanted.work.clients))
    deltas = torch.randn(len(rows), 40, generator=torch.manual_seed(0), dtype=torch.float64)
    found = []
    for arrivals in (rows, rows[::-1], Random(0).sample(rows, len(rows))):
        for each in (True, False):
            received = SummedUpdates(replace(wanted, sums=weights, each=each), rows)
            for row in arrivals:
                received.put(row, ClientUpdate(deltas[row]))
            found.append(received.whole())
            assert (found[-1].deltas is not None) == each
            assert torch.equal(found[-1].sums, found[0].sums)
    torch.testing.assert_close(found[0].sums, weights @ deltas, rtol=0, atol=1e-13)
    assert found[0].deltas is not None
    assert torch.equal(found[0].deltas, deltas)


@pytest.mark.parametrize("model", [{"kind": "mlp"}, {"kind": "dropout_cnn"}])
def test_deltas_that_nobody_asks_for_are_not_kept(model: Document) -> None:
    document = DIGITS_CNN | {"problem": DIGITS_CNN["problem"] | {"model": model}}
    seen, unseen = (
        parallel([job(document, each=each, algorithm={"kind": "fedavg"})])[0] for each in (True, False)
    )
    assert isinstance(seen, AggregatedUpdate)
    assert isinstance(unseen, AggregatedUpdate)
    assert seen.deltas is not None
    assert unseen.deltas is None
    assert torch.equal(seen.sums, unseen.sums)


def test_running_statistics_of_each_client_are_kept() -> None:
    model = {"kind": "fedbn_cnn", "batch_norm": "average"}
    document = DIGITS_CNN | {"problem": DIGITS_CNN["problem"] | {"model": model}}
    (result,) = parallel([job(document, each=False, algorithm={"kind": "fedavg"})])
    assert isinstance(result, ClientUpdate)
    assert result.memory[STATISTICS].shape[0] == len(result.delta)


class Gone:
    """A problem whose samples can no longer be read."""

    def __init__(self, problem: TrainingProblem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def replica(self) -> Gradient:
        def fail(*_: object) -> Tensor:
            raise DataUnavailableError("the samples are gone")

        return fail


def test_error_of_a_client_is_told() -> None:
    torch.set_num_threads(2)
    intact = job(DIGITS_CNN)
    with pytest.raises(DataUnavailableError, match="are gone"):
        parallel([replace(intact, problem=Gone(intact.problem))])
    assert torch.get_num_threads() == 2
