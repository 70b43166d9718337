"""Checks of components that draw clients, work and devices, or divide data."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.partition import partition
from fedcore.errors import SpecificationError
from fedcore.privacy import accounting
from fedcore.random import generator
from fedcore.spec import ExperimentSpec
from fedcore.spec.privacy import private_run
from fedcore.systems.availability import Availability, TraceAvailable
from fedcore.systems.cohorts import draw
from fedcore.testing import runs, trials
from fedcore.testing.finding import CheckFailedError, require
from fedcore.testing.privacy.coupled import CoupledAudit
from fedcore.testing.privacy.noise import noise_findings
from fedcore.testing.privacy.worlds import list_canaries
from fedcore.testing.randomness import no_global_randomness
from fedcore.testing.subject import EXACT, IMAGES, SAMPLED, Subject

POPULATION, ROUNDS, SEED = 20, 3, 5
SHARE = np.arange(1.0, POPULATION + 1) / np.arange(1.0, POPULATION + 1).sum()
KEYED = "the result depends on more than its key: on earlier calls, on the other clients, or on `self`"


def parts_divide_the_samples(subject: Subject) -> None:
    """No sample goes to two clients, none is invented, and no client is empty."""
    spec, labels, keys = subject.spec(), *_labels(subject)
    try:
        partition(spec, labels, SEED, keys if spec.by_owner else None)
    except SpecificationError as error:
        raise CheckFailedError(
            f"distinct sample indices below {len(labels)} for each of the {spec.clients} clients",
            error.detail,
            "samples drawn with replacement, positions in a class in the place of sample indices, or a part"
            " that no draw reached",
            spec.parts,
        ) from error


def counts_that_are_known_are_those_of_parts(subject: Subject) -> None:
    """`counts`, where it says that it knows, are the sizes of the parts, whatever labels and draws are."""
    spec, labels, keys = subject.spec(), *_labels(subject)
    counts, known = spec.counts(len(labels))
    for seed in range(SEED) if known else ():
        shuffled = generator(seed, "labels").permutation(labels)
        sizes = [len(part) for part in spec.parts(shuffled, seed, keys if spec.by_owner else None)]
        require(
            sizes == counts.tolist(),
            f"the sizes of the parts, {sizes[:5]} ..., since `counts` says that they are known",
            f"{counts.tolist()[:5]} ...",
            "sizes depend on labels or draws: return False beside them; or `parts` was changed alone",
            spec.counts,
        )


def a_partition_depends_on_its_seed_alone(subject: Subject) -> None:
    """Equal seeds give equal parts, whatever was drawn before."""
    labels, keys = _labels(subject)
    with no_global_randomness(subject.component):
        first, second = (
            spec.parts(labels, SEED, keys if spec.by_owner else None)
            for spec in (subject.spec(), subject.spec())
        )
    require(
        len(first) == len(second) and all(map(np.array_equal, first, second)),
        "the same parts under the same seed",
        "other parts",
        KEYED,
        subject.spec().parts,
    )


def draws_are_clients(subject: Subject) -> None:
    """Cohorts hold clients of the population, and only clients that can be reached."""
    spec = subject.spec()
    some = np.arange(0, POPULATION, 2)
    for round in _rounds(spec):
        drawn = spec.draw(SHARE, None, generator(SEED, "cohort", round), round)
        _check_ids(drawn, np.arange(POPULATION), spec.draw)
        reached = spec.draw(SHARE, TraceAvailable(some), generator(SEED, "cohort", round), round)
        _check_ids(reached, some, spec.draw)


def draws_are_keyed(subject: Subject) -> None:
    """A round's cohort depends on (seed, round) alone."""
    with no_global_randomness(subject.component):
        cohorts = [
            {round: draw(spec, SHARE, SEED, round).clients.tolist() for round in order}
            for spec, order in (
                (subject.spec(), _rounds(subject.spec())),
                (subject.spec(), _rounds(subject.spec())[::-1]),
            )
        ]
    require(
        cohorts[0] == cohorts[1],
        "the same clients in each round, whatever order the rounds are drawn in",
        f"{cohorts[0]} and {cohorts[1]}",
        KEYED,
        subject.spec().draw,
    )


def expected_draws_are_those_of_draw(subject: Subject) -> None:
    """How often a client is drawn in 4,000 rounds is what `expected_draws` says, to five deviations."""
    spec, count = subject.spec(), 4_000
    if spec.unknown_probability() is not None or spec.listed(1) is not None:
        return
    rng, drawn = generator(SEED, "expected draws"), np.zeros(POPULATION)
    for _ in range(count):
        np.add.at(drawn, spec.draw(SHARE, None, rng, 1), 1)
    expected = np.asarray(spec.expected_draws(SHARE, np.arange(POPULATION)))
    off = np.abs(drawn / count - expected) / np.sqrt((expected + 1 / count) / count)
    worst = int(off.argmax())
    require(
        off.max() < 5,
        f"client {worst} to be drawn {expected[worst]:.3f} times a round, as `expected_draws` says",
        f"{drawn[worst] / count:.3f} times on average",
        "`expected_draws` is not overridden; if it has no closed form, say so in `unknown_probability`",
        spec.expected_draws,
    )


def cohorts_are_the_same_for_all_algorithms(subject: Subject) -> None:
    """FedAvg and SCAFFOLD see the same clients under the same seed, unless these are selected by values
    of the training.
    """
    if subject.spec().selects():
        return

    def other(**changes: Any) -> ExperimentSpec:
        return _participating(subject)(algorithm={"kind": "scaffold"}, **changes)

    runs.does_the_same_work(_participating(subject), other)


def honest_changes_are_left_alone(subject: Subject) -> None:
    """Forged changes have the shape and type of the cohort's, depend on the stream alone, and honest
    clients' are what they were.
    """
    spec, count, dim = subject.spec(), 6, 4
    deltas = torch.from_numpy(generator(SEED, "changes").standard_normal((count, dim)))
    for malicious in (torch.arange(count) < 2, torch.ones(count, dtype=torch.bool)):
        with no_global_randomness(subject.component):
            first, second = (
                spec.forge(deltas.clone(), malicious, generator(SEED, "attack")) for _ in range(2)
            )
        require(
            first.shape == deltas.shape and first.dtype == deltas.dtype,
            f"changes {list(deltas.shape)} of {deltas.dtype}",
            f"{list(first.shape)} of {first.dtype}",
            "one row for each client of the cohort, in its order",
            spec.forge,
        )
        require(
            torch.equal(first, second), "the same forgery from the same stream", "another", KEYED, spec.forge
        )
        require(
            torch.equal(first[~malicious], deltas[~malicious]),
            "the changes of honest clients as they sent them",
            "others",
            "only rows where `malicious` is true may change",
            spec.forge,
        )


def epsilon_grows_with_rounds_and_falls_with_noise(subject: Subject) -> None:
    """Each round costs privacy, and more noise costs less of it; without noise there is none."""
    make = RUNS["privacy"](subject)
    run, spec = private_run(make()), subject.spec()

    def epsilon(noise: float, rounds: int) -> float:
        released, count = spec.releases(noise, run, rounds)
        return accounting.epsilon(released, count, spec.delta, spec.accountant)

    found = [epsilon(2.0, 1), epsilon(2.0, 2), epsilon(1.0, 2), epsilon(0.0, 2)]
    require(
        0 < found[0] < found[1] < found[2] < found[3] == inf,
        "epsilon to grow with the rounds, to fall with the noise multiplier, and be infinite without it",
        f"{found} of z = 2 after one and two rounds, and of z = 1 and 0 after two",
        "a release whose `ratio` is not proportional to the noise, or a count that is not that of the rounds",
        spec.releases,
    )


def availability_is_keyed(subject: Subject) -> None:
    """Who can be reached in a round depends on (seed, round) alone, and `has` agrees with `all`."""
    everyone = np.arange(POPULATION)
    with no_global_randomness(subject.component):
        spec, again = subject.spec(), subject.spec()
        for round in (3, 1, 2):
            reached = _reached(spec, round)
            _check_ids(reached, everyone, spec.reachable)
            has = spec.reachable_at(3_600.0 * round, POPULATION, SEED, round).has(everyone)
            require(
                np.array_equal(np.sort(reached), _reached(again, round))
                and np.array_equal(everyone[has], np.sort(reached)),
                "the same clients from `all` and `has`, each time they are asked",
                f"{reached.tolist()} and {everyone[has].tolist()} in round {round}",
                KEYED,
                spec.reachable,
            )


def work_is_keyed(subject: Subject) -> None:
    """Each number is a whole number of at least 1 and depends on (seed, round, client) alone."""
    keys = [(round, client) for round in (1, 2) for client in (0, 1)]
    with no_global_randomness(subject.component):
        first, second = (
            {key: spec.draw("check", SEED, *key, 40) for key in order}
            for spec, order in ((subject.spec(), keys), (subject.spec(), keys[::-1]))
        )
    method = subject.spec().draw
    for (round, client), value in first.items():
        require(
            isinstance(value, int) and value >= 1,
            "a whole number of at least 1",
            f"{value!r} of client {client} in round {round}",
            "a float, or a draw that can be 0; round and clip it",
            method,
        )
    require(first == second, "the same numbers in any order of calls", f"{first} and {second}", KEYED, method)


def figures_are_keyed(subject: Subject) -> None:
    """A device's figure is positive and depends on (seed, client) alone."""
    clients = np.arange(2)
    with no_global_randomness(subject.component):
        whole = subject.spec().figures("check", clients, SEED)
        alone = [subject.spec().figures("check", clients[i : i + 1], SEED)[0] for i in (1, 0)][::-1]
    method = subject.spec().figures
    require(
        np.shape(whole) == (2,) and np.all(np.asarray(whole) > 0) and np.all(np.isfinite(whole)),
        "a positive finite figure of each client, [M]",
        f"{whole!r}",
        "a distribution with zero or negative values",
        method,
    )
    require(
        np.array_equal(whole, alone),
        "the same figures for each client alone",
        f"{whole} and {alone}",
        KEYED,
        method,
    )


def nothing_leaves_a_run_but_what_is_released(subject: Subject) -> None:
    """Runs on neighbouring data move what is released by its sensitivity at most, and nothing else."""
    audited = CoupledAudit(RUNS[subject.family](subject)(), SEED)
    found = audited.violations(list_canaries(audited.neighbours)[::3])
    require(
        not found,
        "neighbouring data to move what `released` declares by its sensitivity, and nothing else",
        str(found[0]) if found else "",
        "a sum before clipping, a noise that is used twice, a state without noise, or a denominator that"
        " depends on the cohort; `released` and `neighbours` say what is meant to leave",
        type(subject.spec()).released,
    )


def noise_is_normal_and_used_once(subject: Subject) -> None:
    """The noise of an aggregator has the declared deviation, and each number is independent of others."""
    spec = RUNS[subject.family](subject)()
    if spec.privacy is None or spec.privacy.clips_samples:
        return  # the engine adds it
    found = noise_findings(spec.privacy, private_run(spec))
    require(
        not found,
        "normal noise with the deviation that `released` declares, drawn anew for each release",
        "; ".join(found),
        KEYED,
        type(spec.privacy).released,
    )


def _labels(subject: Subject) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ten classes and as many owners as clients, with enough samples."""
    count = max(2_000, 100 * subject.spec().clients)
    rng = np.random.Generator(np.random.PCG64(0))
    return rng.integers(0, 10, count), rng.integers(0, 2 * subject.spec().clients, count)


def _rounds(spec: Any) -> list[int]:
    listed = spec.listed(ROUNDS)
    return list(range(1, 1 + (ROUNDS if listed is None else len(listed))))


def _reached(spec: Availability, round: int) -> NDArray[np.int64]:
    return spec.reachable_at(3_600.0 * round, POPULATION, SEED, round).all()


def _check_ids(drawn: Any, among: NDArray[np.int64], method: Callable[..., Any]) -> None:
    values = np.asarray(drawn)
    require(
        values.ndim == 1
        and (not len(values) or np.issubdtype(values.dtype, np.integer))
        and np.isin(values, among).all(),
        f"an array of client ids among {among.tolist()}",
        f"{values.tolist()}",
        "ids that are not of the population, or clients that cannot be reached (`reachable.all()`)",
        method,
    )


def _participating(subject: Subject) -> runs.Make:
    spec = subject.spec()
    listed = spec.listed(ROUNDS)
    rounds = ROUNDS if listed is None else len(listed)
    clients = {"dataset": {**SAMPLED["problem"]["dataset"], "clients": POPULATION}}
    # One step per client: who takes part does not depend on how many there are.
    local = {**SAMPLED["local"], "batch_size": "full"}
    base = {**SAMPLED, "rounds": rounds, "problem": {**SAMPLED["problem"], **clients}, "local": local}
    if spec.needs_devices():
        speed = {"steps_per_second": {"kind": "uniform", "low": 1.0, "high": 9.0}}
        base |= {"systems": {**SAMPLED.get("systems", {}), "devices": speed}}
    return lambda **changes: subject.experiment(base, "participation", **changes)


def _at(base: dict[str, Any], path: str) -> Callable[[Subject], runs.Make]:
    return lambda subject: lambda **changes: subject.experiment(base, path, **changes)


TWO = {
    **EXACT,
    "problem": {"dataset": {"kind": "least_squares", "generate": {"clients": 2, "dim": 3, "seed": 1}}},
}
TWO |= {"systems": {}, "rounds": 2}
TIMED = {**TWO, "systems": {"devices": {"steps_per_second": {"kind": "constant", "value": 1.0}}}}
MANY_IMAGES = {
    **IMAGES,
    "problem": {**IMAGES["problem"], "partition": {"kind": "iid", "clients": 10}},
}
EQUAL_IMAGES = {
    **IMAGES,
    # The engine `reference` takes the gradient of each image on its own.
    "problem": {**IMAGES["problem"], "partition": {"kind": "iid", "clients": 4, "hold_out": 0.9}},
    "participation": {"kind": "full", "weighting": "uniform"},
    "local": {"lr": 0.05, "epochs": 1, "batch_size": 20},
}
RUNS: dict[str, Callable[[Subject], runs.Make]] = {
    "partitions": _at(IMAGES, "problem.partition"),
    "participations": _participating,
    "availabilities": _at(TIMED, "systems.availability"),
    "attacks": _at(MANY_IMAGES, "systems.attack"),
    "privacy": _at(EQUAL_IMAGES, "privacy"),
    "work": _at({**TWO, "local": {"lr": 0.05}}, "systems.steps"),
    "batch_sizes": _at(TWO, "systems.batch_size"),
    "device_rates": _at(TWO, "systems.devices.steps_per_second"),
}
"""The experiments in which each family is tried."""


def _makes(subject: Subject) -> list[runs.Make]:
    """The experiment of the family; none where a partition needs other data."""
    make = RUNS[subject.family](subject)
    try:
        make()
    except SpecificationError:
        if subject.family != "partitions":
            raise
        return []
    return [make]


_IN_RUNS = trials.checks_in_runs(_makes)
PARTITION = (
    parts_divide_the_samples,
    counts_that_are_known_are_those_of_parts,
    a_partition_depends_on_its_seed_alone,
    _IN_RUNS.resumption,
)
PARTICIPATION = (
    draws_are_clients,
    draws_are_keyed,
    expected_draws_are_those_of_draw,
    cohorts_are_the_same_for_all_algorithms,
    _IN_RUNS.randomness,
    _IN_RUNS.resumption,
)
AVAILABILITY = (availability_is_keyed, _IN_RUNS.randomness, _IN_RUNS.resumption)
ATTACK = (honest_changes_are_left_alone, _IN_RUNS.randomness, _IN_RUNS.resumption)
PRIVACY = (
    epsilon_grows_with_rounds_and_falls_with_noise,
    nothing_leaves_a_run_but_what_is_released,
    noise_is_normal_and_used_once,
    _IN_RUNS.engines,
    _IN_RUNS.randomness,
    _IN_RUNS.resumption,
)
WORK = (work_is_keyed, _IN_RUNS.randomness, _IN_RUNS.resumption)
DEVICE_RATE = (figures_are_keyed, _IN_RUNS.randomness, _IN_RUNS.resumption)
