"""Proposals of a study: the settings of the next trials, from the results of trials that have
ended.

Proposals are a function of the study's block and of the values of trials, in their order:
Optuna's samplers are asked on a study in memory that is rebuilt each time, so that nothing but the
results has to be kept. Optuna (Akiba et al., 2019) is loaded with the first proposal.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from fedcore.lazy import optuna
from fedcore.lazy import random as streams
from fedcore.ranges import Choice, FloatRange, IntRange
from fedcore.spec.search import list_batches

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

    from fedcore.ranges import AnyRange
    from fedcore.spec.search import Study
    from fedcore.spec.space import Settings

PURPOSE = "study"
"""Purpose of the streams that seed samplers."""
STARTUP_TRIALS = 10
"""Trials that TPE and the Gaussian process draw at random first."""
POPULATION = 20
"""Trials of a generation of NSGA-II: Optuna's 50 are more than most studies have."""


class TrialResult(NamedTuple):
    """The values of a trial that has ended."""

    values: tuple[float, ...]
    """Values by metric, in the order of `search.objectives`; NaN for one that is not finite."""
    stopped: int | None = None
    """The round at which the pruner stopped it, whose values these are."""


def next_trials(search: Study, rounds: int) -> int:
    """Number of trials to propose once all that are proposed have ended: up to the end of the next
    batch; 0 if all trials are proposed.
    """
    return _up_to_end(search, rounds, len(search.proposed) + 1)


def first_trials(search: Study, rounds: int) -> int:
    """Number of trials to propose before any has run, in addition to the trials that are given."""
    return _up_to_end(search, rounds, max(len(search.proposed), 1))


def _up_to_end(search: Study, rounds: int, count: int) -> int:
    """Trials missing up to the end of the batch of the trial `count` - 1."""
    ends = (batch.last for batch in list_batches(search, rounds))
    return next((end for end in ends if end >= count), search.trials) - len(search.proposed)


def needs_torch(search: Study, results: Sequence[TrialResult]) -> bool:
    """True if proposals from these results take PyTorch, which only workers and the library have."""
    return search.sampler == "gp" and _learns(results)


def propose(search: Study, results: Sequence[TrialResult], count: int, rounds: int) -> list[Settings]:
    """The settings of the next `count` trials of `search`, each of `rounds` rounds.

    `results` [n] belong to the first n trials, all that have ended; a value that is not finite
    counts as the worst of the others. Trials of `search.proposed` after them are running. A trial's
    sampler is seeded by (`search.seed`, index of the trial); CMA-ES and NSGA-II, whose state is
    that of all their proposals, are asked for all of them again.
    """
    known = _with_worst(search, results)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(directions=convert_directions(search))
        if search.sampler in ("cmaes", "nsga2"):
            return _replayed(study, search, known, count, rounds)
        for place, settings in enumerate(search.proposed):
            study.add_trial(_trial(search, settings, known[place] if place < len(known) else None))
        learns = _learns(known)
        return [_ask(study, search, len(search.proposed) + place, learns=learns) for place in range(count)]


def convert_directions(search: Study) -> list[str]:
    """The directions of the metrics, as Optuna's."""
    return ["maximize" if one.maximise else "minimize" for one in search.objectives]


def pareto_front(values: Sequence[Sequence[float]], maximise: Sequence[bool]) -> list[int]:
    """Indices of the points [n, m] that no other is at least as good as in every metric and better
    than in one; points with a value that is not finite are left out.
    """
    signed = {
        place: [-value if more else value for value, more in zip(point, maximise, strict=True)]
        for place, point in enumerate(values)
        if all(map(isfinite, point))
    }
    front: list[int] = []
    # In lexicographic order, what dominates a point comes before it.
    for place in sorted(signed, key=lambda place: signed[place]):
        if not any(_dominates(signed[other], signed[place]) for other in front):
            front.append(place)
    return sorted(front)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))


def convert_ranges(space: Mapping[str, AnyRange]) -> dict[str, BaseDistribution]:
    """The ranges of a space, as Optuna's."""
    return {path: _distribution(searched) for path, searched in space.items()}


def best_so_far(values: Sequence[float], *, maximise: bool) -> list[float]:
    """The best finite value among the first 1, 2, ..., n trials; NaN before the first."""
    best, found = nan, []
    for value in values:
        if isfinite(value) and (not isfinite(best) or (value > best if maximise else value < best)):
            best = value
        found.append(best)
    return found


def _with_worst(search: Study, results: Sequence[TrialResult]) -> list[TrialResult]:
    """Results as samplers see them: a value that is not finite is the worst of the others, NaN if
    there are none.

    Optuna's samplers leave failed trials out, and would go on proposing learning rates that diverge.
    """
    columns = zip(*(result.values for result in results), strict=True)
    worst = [
        (min if one.maximise else max)(finite) if (finite := [*filter(isfinite, column)]) else nan
        for one, column in zip(search.objectives, columns, strict=False)
    ]
    return [
        result._replace(
            values=tuple(
                value if isfinite(value) else other for value, other in zip(result.values, worst, strict=True)
            )
        )
        for result in results
    ]


def _learns(results: Sequence[TrialResult]) -> bool:
    """True if there are results enough, and values, for the sampler to learn from."""
    return len(results) >= STARTUP_TRIALS and any(all(map(isfinite, result.values)) for result in results)


def _distribution(searched: AnyRange) -> BaseDistribution:
    kinds = optuna.distributions
    if isinstance(searched, FloatRange):
        return kinds.FloatDistribution(searched.low, searched.high, log=searched.log)
    if isinstance(searched, IntRange):
        return kinds.IntDistribution(searched.low, searched.high, log=searched.log, step=searched.step)
    assert isinstance(searched, Choice)
    return kinds.CategoricalDistribution(searched.values)


def _trial(search: Study, settings: Settings, result: TrialResult | None) -> optuna.trial.FrozenTrial:
    """A trial with its values, if it has ended.

    TPE ranks trials that were stopped early behind the others, by the round they came to. The
    Gaussian process would leave them out: for it, a trial has the value of the round at which it
    was stopped.
    """
    states = optuna.trial.TrialState
    steps: dict[int, float] = {}
    values: Sequence[float] | None = None
    state = states.RUNNING
    if result is not None:
        state = states.COMPLETE if all(map(isfinite, result.values)) else states.FAIL
        values = result.values if state is states.COMPLETE else None
        if values and result.stopped is not None and search.sampler == "tpe":
            state, steps = states.PRUNED, {result.stopped: values[0]}
    return optuna.trial.create_trial(
        state=state,
        params=dict(settings),
        distributions=convert_ranges(search.space),
        values=values,
        intermediate_values=steps,
    )


def _ask(study: optuna.Study, search: Study, index: int, *, learns: bool) -> Settings:
    seed = int(streams.generator(search.seed, PURPOSE, index).integers(2**32))
    # What the Gaussian process would draw too, without PyTorch.
    drawn = search.sampler == "gp" and not learns
    study.sampler = optuna.samplers.RandomSampler(seed=seed) if drawn else _sampler(search, seed)
    return _asked(study, search)[1]


def _asked(study: optuna.Study, search: Study) -> tuple[optuna.Trial, Settings]:
    trial = study.ask(fixed_distributions=convert_ranges(search.space))
    return trial, {path: _within(searched, trial.params[path]) for path, searched in search.space.items()}


def _within(searched: AnyRange, value: Any) -> Any:
    """The value in its range: rounding of a logarithm may lead out of it."""
    return min(max(value, searched.low), searched.high) if isinstance(searched, FloatRange) else value


def _sampler(search: Study, seed: int) -> BaseSampler:
    samplers = optuna.samplers
    match search.sampler:
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "tpe":
            return samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
            )
        case "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        case "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=POPULATION)


def _replayed(
    study: optuna.Study, search: Study, results: Sequence[TrialResult], count: int, rounds: int
) -> list[Settings]:
    """Ask for all trials so far and for `count` more, batch by batch, telling values between.

    A given trial that the sampler did not propose is one that it does not learn from.
    """
    study.sampler = _sampler(search, int(streams.generator(search.seed, PURPOSE).integers(2**32)))
    found: list[Settings] = []
    total = len(search.proposed) + count
    for first, last, _ in list_batches(search, rounds):
        if first >= total:
            break
        asked = [_asked(study, search) for _ in range(first, min(last, total))]
        for index, (trial, settings) in enumerate(asked, first):
            found.append(settings)
            if index >= len(results):
                continue
            values = results[index].values
            own = settings == search.proposed[index] and all(map(isfinite, values))
            study.tell(
                trial,
                values if own else None,
                state=None if own else optuna.trial.TrialState.FAIL,
            )
    return found[len(search.proposed) :]
