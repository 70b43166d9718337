"""Pruning of a study: which trials of a batch go on from a rung.

Decisions are a function of the study's block and of the values of trials at rungs, batch by batch:
decisions about a batch at a rung are made once all its trials are there or have ended, and all
earlier batches have ended. A stopped trial is not continued later. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from statistics import median

from fedcore.simulation.halving import Decision, Verdict, ranking_key
from fedcore.spec.search import AshaPruner, Batch, HalvingPruner, MedianPruner, Study, list_batches

RungValues = Mapping[tuple[int, int], float]
"""The values of trials by (trial, index of the rung); NaN for one without a finite value."""


def rungs(search: Study, rounds: int) -> tuple[int, ...]:
    """The rounds at which trials are judged; at the last of them, the last round, none is stopped."""
    return (*(search.pruner.rungs(rounds) if search.pruner else ()), rounds)


def batch_of(search: Study, rounds: int, trial: int) -> Batch:
    """The batch of a trial."""
    return next(batch for batch in list_batches(search, rounds) if trial < batch.last)


def decide(search: Study, rounds: int, batch: Batch, rung: int, values: RungValues) -> list[Decision]:
    """The decisions about the trials of `batch` that have come to `rung`, the best first.

    `values` has all trials of the batch and of earlier ones, up to this rung at least.
    """
    return list(_decisions(search, rounds, batch, rung, values))


def _decisions(search: Study, rounds: int, batch: Batch, rung: int, values: RungValues) -> Iterator[Decision]:
    pruner = search.pruner
    assert pruner is not None
    own = {trial: values[trial, rung] for trial in range(batch.first, batch.last) if (trial, rung) in values}
    if isinstance(pruner, MedianPruner):
        yield from _by_median(search, pruner, len(pruner.rungs(rounds)), batch, rung, values)
        return
    field = own
    places = (batch.last - batch.first) // pruner.eta ** (rung - batch.rung + 1)
    if isinstance(pruner, AshaPruner):
        field = {trial: value for (trial, at), value in values.items() if at == rung and trial < batch.last}
        places = max(1, len(field) // pruner.eta)
    ranking = sorted(field, key=lambda trial: ranking_key(field[trial], trial, maximise=search.maximise))
    for rank, trial in enumerate(ranking, 1):
        if trial in own:
            goes_on = rank <= places and isfinite(own[trial])
            verdict = Verdict.PROMOTED if goes_on else Verdict.STOPPED
            yield Decision(trial, rung, verdict, rank, len(field), places)


def _by_median(
    search: Study, pruner: MedianPruner, end: int, batch: Batch, rung: int, values: RungValues
) -> Iterator[Decision]:
    """`end` is the index of the last rung, at the last round."""
    sign = -1 if search.maximise else 1
    complete = [trial for trial in range(batch.first) if isfinite(values.get((trial, end), float("nan")))]
    known = [sign * values[trial, rung] for trial in complete if isfinite(values[trial, rung])]
    found = []
    for trial in range(batch.first, batch.last):
        if (trial, rung) not in values:
            continue
        own = [sign * value for at in range(rung + 1) if isfinite(value := values[trial, at])]
        finite = isfinite(values[trial, rung])
        early = len(complete) < pruner.startup_trials or not known
        goes_on = finite and (early or min(own) <= median(known))
        rank = 1 + (sum(other < min(own) for other in known) if finite else len(known))
        verdict = Verdict.PROMOTED if goes_on else Verdict.STOPPED
        found.append(Decision(trial, rung, verdict, rank, len(known) + 1, None))
    yield from sorted(found, key=lambda decision: (decision.rank, decision.arm))


def expected(search: Study, rounds: int) -> list[tuple[int, int]] | None:
    """The stages of a study: the round each ends at and the number of trials that play it; None if
    it depends on the values.
    """
    pruner = search.pruner
    if not isinstance(pruner, HalvingPruner) or isinstance(pruner, AshaPruner):
        return None if pruner else [(rounds, search.trials)]
    ends = rungs(search, rounds)
    counts = [0] * len(ends)
    for first, last, start in list_batches(search, rounds):
        for rung in range(len(ends)):
            counts[rung] += (last - first) // pruner.eta ** max(rung - start, 0)
    return list(zip(ends, counts, strict=True))
