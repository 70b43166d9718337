"""Checks of whole runs in which a component takes part."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from fedcore.engine.engines import ENGINE_INFO, supports
from fedcore.simulation.checkpoint import loads
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.testing.finding import CheckFailedError, require
from fedcore.testing.randomness import no_global_randomness
from fedcore.testing.subject import EXACT, Subject

Make = Callable[..., ExperimentSpec]
"""Makes an experiment anew, with changes of its blocks."""
TOLERANCE = 1e-9


def engines_agree(make: Make, seed: int = 3) -> None:
    """Engines that support the experiment, in float64, all end with the model of `reference`, with what its
    clients keep, and with what it broadcasts.
    """
    spec = make(execution={"engine": "reference", "precision": "float64"})
    algorithm, problem = spec.build(), Simulation(spec, seed).begin().flow.context.problem
    models = {
        engine: _whole(finished(make(execution={"engine": engine, "precision": "float64"}), seed))
        for engine in ENGINE_INFO
        if supports(engine, algorithm, problem)
    }
    expected = models.pop("reference")
    for engine, found in models.items():
        off = float((found - expected).abs().max())
        require(
            off <= TOLERANCE,
            f"the engine `{engine}` to agree with `reference` to {TOLERANCE:g}",
            f"a difference of {off:.3g}",
            "an operation that mixes clients: all but `vectorised` train one client [D], `vectorised` a"
            " cohort [M, D]; reduce over dim=-1 and keep the dimension",
        )


def resumes_at_every_round(make: Make, seed: int = 1) -> None:
    """From the checkpoint of any round a run goes on to the same next state, to the bit."""
    undisturbed = Simulation(make(), seed)
    states = [undisturbed.checkpoint()]
    while not undisturbed.finished:
        undisturbed.advance()
        states.append(undisturbed.checkpoint())
    resumed = Simulation(make(), seed, choice=undisturbed.facts.choice)
    # The last first: what is kept beside the checkpoint is then from a later round.
    for round, (before, after) in [*enumerate(pairwise(states), start=1)][::-1]:
        resumed.restore(before)
        resumed.advance()
        if resumed.checkpoint() != after:
            changed = changed_tensors(after, resumed.checkpoint()) or ["its manifest"]
            raise CheckFailedError(
                "a run resumed from a checkpoint to continue with the same bits",
                f"other bits after round {round}: {', '.join(changed)}",
                "state that is kept on `self` or in a module is not in checkpoints; return it as memory,"
                " shared vectors or state of the aggregator or server optimiser",
            )


def descends(make: Make, turned: Callable[[], object] = lambda: None, rounds: int = 30) -> None:
    """A run on the quadratics of EXACT with a small step size stays finite, and ends at a lower loss than
    it begins. `turned` gives the place of a step in the wrong direction.
    """
    simulation = finished(make(rounds=rounds, evaluation={"measures": [], "every": rounds}), 0)
    require(
        not simulation.facts.diverged,
        f"a finite model after {rounds} rounds on quadratics",
        f"a model that is not finite after round {simulation.round}",
        "a division by zero (a client that does not move, equal vectors), or a step that grows",
    )
    hessians, linear, weights, start = _quadratics()
    models = _flat(simulation).view(-1, len(start))

    def loss(x: Tensor) -> Tensor:
        return 0.5 * torch.einsum("ka,nab,kb->kn", x, hessians, x) - x @ linear.T

    before, after = float(weights @ loss(start[None])[0]), float(weights @ loss(models).amin(0))
    if after > before + 1e-9:
        raise CheckFailedError(
            f"a loss below {before:.4g}, that of the first model, after {rounds} rounds on quadratics",
            f"{after:.4g}: the run ascends",
            "a sign: a client descends along its `direction` and sends delta = y - x, and the server adds"
            " its step to x",
            turned(),
        )


AT_REST = 1e-4


def rest(make: Make, rounds: int = 400, stretch: int = 50) -> Tensor | None:
    """Where a run comes to rest: its model [D] once no entry moves by more than AT_REST / 1000 in
    `stretch` rounds, nor in one; None if it does not.
    """
    simulation = Simulation(make(rounds=rounds, evaluation={"measures": [], "every": rounds}), 0)
    earlier = last = _flat(simulation)
    while not simulation.finished:
        simulation.advance()
        x = _flat(simulation)
        if simulation.round % stretch == 0:
            if max(float((x - other).abs().max()) for other in (earlier, last)) <= AT_REST / 1_000:
                return x
            earlier = x
        last = x
    return None


def optimum(weighting: str) -> Tensor:
    """[D] the minimiser of the clients' weighted sum on the quadratics of EXACT."""
    hessians, linear, weights, _ = _quadratics()
    shares = torch.full_like(weights, 1 / len(weights)) if weighting == "uniform" else weights
    minimiser: Tensor = torch.linalg.solve(torch.tensordot(shares, hessians, 1), shares @ linear)
    return minimiser


def _quadratics() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """H [N, D, D], e [N, D], the weights [N] and x_0 [D] of EXACT."""
    block = EXACT["problem"]["dataset"]
    hessians, linear, weights = (
        torch.tensor([client[name] for client in block["clients"]], dtype=torch.float64)
        for name in ("H", "e", "weight")
    )
    return hessians, linear, weights / weights.sum(), torch.tensor(block["x0"], dtype=torch.float64)


def does_the_same_work(make: Make, plain: Make, seed: int = 2) -> None:
    """Clients, local steps, mini-batches and noise are the same as in the run `plain`."""
    for ours, theirs in zip(_work(make(), seed), _work(plain(), seed), strict=True):
        require(
            ours == theirs,
            "the clients, local steps and mini-batches that FedAvg has under the same seed",
            f"others in round {ours[0]}",
            "code that draws from the streams of the run, or changes tensors that it was given in place",
        )


def uses_keyed_randomness(subject: Subject, make: Make) -> None:
    """No operation of the component draws from a global random generator in two rounds, the second of
    which uses what the first has left.
    """
    spec = make(rounds=2, execution={"engine": "reference", "precision": "float64"})
    with no_global_randomness(subject.component):
        finished(spec, 0)


def keeps_no_growing_state(make: Make, rounds: int = 12) -> None:
    """With everyone taking part, neither checkpoints nor the tensors alive grow over rounds."""
    simulation = Simulation(make(rounds=rounds), 0)
    sizes, tensors = [], []
    # What is there already need not be looked at again.
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        while not simulation.finished:
            simulation.advance()
            if simulation.round in (3, rounds):
                sizes.append(sum(value.nbytes for value in loads(simulation.checkpoint())[0].values()))
                tensors.append(_tensors_alive())
    finally:
        if ours:
            gc.unfreeze()
    cause = "a list or a tensor to which each round adds; keep running sums instead"
    require(
        sizes[0] == sizes[1],
        f"checkpoints of the same size after 3 and {rounds} rounds",
        f"{sizes[0]} and {sizes[1]} bytes",
        cause,
    )
    grown = tensors[1] - tensors[0]
    require(
        grown < rounds - 3,
        f"as many tensors in memory after {rounds} rounds as after 3",
        f"{grown} more",
        cause,
    )


def finished(spec: ExperimentSpec, seed: int) -> Simulation:
    """The run after its last round."""
    simulation = Simulation(spec, seed)
    while not simulation.finished:
        simulation.advance()
    return simulation


def _flat(simulation: Simulation) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()]).double()


def _whole(simulation: Simulation) -> Tensor:
    state = simulation.state
    beside = [*state.table.state().values(), *state.server.shared.values()]
    return torch.cat([_flat(simulation), *(tensor.flatten().double() for tensor in beside)])


def changed_tensors(expected: bytes, found: bytes) -> list[str]:
    """Names of the tensors that differ between two checkpoints."""
    first, second = loads(expected)[0], loads(found)[0]
    return sorted(
        name
        for name in first.keys() | second.keys()
        if name not in first or name not in second or not torch.equal(first[name], second[name])
    )


def _work(spec: ExperimentSpec, seed: int) -> Iterator[tuple[object, ...]]:
    """Round, clients, steps, batches and noise of each round."""
    simulation = Simulation(spec, seed)
    while not simulation.finished:
        work = simulation.begin().flow.work
        if work is None:
            yield (simulation.round + 1,)
        else:
            batches = [batch.tolist() for batch in work.batches]
            noise = None if work.noise is None else [each.tolist() for each in work.noise]
            yield simulation.round + 1, work.clients.tolist(), work.steps.tolist(), batches, noise
        simulation.advance()


def _tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())
