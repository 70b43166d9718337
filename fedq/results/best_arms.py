"""The arms of results that may be the best, and the conclusion in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import get_args

from fedcore.statistics.best_set import (
    ArmBeside,
    ArmVerdict,
    BestSet,
    ComparisonScale,
    find_best_arms,
)
from fedcore.statistics.summary import CONFIDENCE, LEAST_SEEDS, better_of
from fedq.results.presentation import ComparedFigure, TargetCost, counted, is_share
from fedq.schemas import ArmBesideOthers, BestArms

NAMED = 5
"""Names of arms in a sentence, at most."""
MOST_COMPARED = 200
"""Arms with figures, at most: their comparisons take a second, and the cube of it for more."""
_POSITIVE = ("train_loss", "test_loss", "suboptimality", "distance")
_WORDS = {
    "final": "final {metric}",
    "best": "best {metric}",
    "area": "mean {metric} over the rounds",
    "rounds": "rounds to {metric} {target:g}",
    "megabytes": "megabytes to {metric} {target:g}",
    "simulated_seconds": "simulated seconds to {metric} {target:g}",
}


def best_arms(  # noqa: PLR0913 - what a comparison depends on
    names: Sequence[str],
    figures: Sequence[Mapping[int, float]],
    diverged: Sequence[Collection[int]],
    metric: str,
    by: ComparedFigure,
    baseline: int | None = None,
    *,
    target: float = 0.0,
    horizon: float = inf,
    confirmed: bool = False,
    references: Collection[int] = (),
) -> BestArms | None:
    """The arms that may be the best by these figures, by seed, and each beside the best of the others or
    beside a `baseline`; None for a single arm, for more than MOST_COMPARED with figures, and for a metric
    that has no better and worse. Arms that are `references` do not compete: they are in no such set, and are
    beside others only as the baseline.

    Costs are those of reaching the value `target` of the metric, and count up to the `horizon`. Unless the
    arms are `confirmed`, by seeds that did not select them, the leader of many is said to be selected.
    """
    cost = by in get_args(TargetCost)
    better = min if cost else better_of(metric)
    competing, beside_reference = len(names) - len(references), baseline in references
    if better is None or sum(map(bool, figures)) > MOST_COMPARED:
        return None
    if competing < (1 if beside_reference else 2):
        return None
    scale = ComparisonScale.LOG if cost else _scale_of(metric)

    def find(left_out: set[int]) -> BestSet:
        kept = [{} if arm in left_out else values for arm, values in enumerate(figures)]
        return _found(kept, diverged, scale, baseline, higher_is_better=better is max)

    found = find({*references})
    if beside_reference:
        # The line that the others are beside is not among those that may be the best.
        found = found._replace(control=find({*references} - {baseline}).control)
    found = _with_references(found, references)
    figure = _WORDS[by].format(metric=metric.replace("_", " "), target=target)
    said = [_words(names, found, figure, better)] if competing > 1 else []
    if baseline is not None and found.arms:
        said.insert(0, _beside_baseline(names, found, figure, baseline))
    compared = _compared(found)
    if found.arms and not confirmed and compared > NAMED:
        said.append(
            f"The leader is selected from {compared} arms by these figures, which are thus too good: confirm"
            " it on fresh seeds."
        )
    if horizon < inf:
        said.append(
            f"Runs count up to {horizon:,.4g} {by.replace('_', ' ')}, the least that one spent which did not"
            " reach it."
        )
    return BestArms(
        metric=metric,
        by=by,
        arms=list(found.arms),
        baseline=baseline,
        beside=[
            ArmBesideOthers(**one._asdict(), words=_verdict(one)) for one in found.control or found.beside
        ],
        seeds=found.seeds,
        seeds_to_decide=found.seeds_to_decide,
        says=" ".join(said),
    )


def _scale_of(metric: str) -> ComparisonScale:
    """Return the scale on which arms differ in a metric by effects that add up."""
    if is_share(metric) and metric != "client_accuracy_std":
        return ComparisonScale.LOGIT
    return ComparisonScale.LOG if metric in _POSITIVE else ComparisonScale.IDENTITY


def _found(
    figures: Sequence[Mapping[int, float]],
    diverged: Sequence[Collection[int]],
    scale: ComparisonScale,
    baseline: int | None,
    *,
    higher_is_better: bool,
) -> BestSet:
    find = partial(
        find_best_arms, figures, higher_is_better=higher_is_better, diverged=diverged, control=baseline
    )
    try:
        return find(scale=scale)
    except ValueError:  # A loss of 0, for example, has no logarithm.
        return find()


def _with_references(found: BestSet, references: Collection[int]) -> BestSet:
    """Name lines of reference so where they were not compared."""

    def named(beside: Sequence[ArmBeside]) -> tuple[ArmBeside, ...]:
        return tuple(
            one._replace(verdict=ArmVerdict.REFERENCE)
            if arm in references and one.verdict is ArmVerdict.NOT_COMPARED
            else one
            for arm, one in enumerate(beside)
        )

    return found._replace(beside=named(found.beside), control=named(found.control))


_VERDICTS = {
    None: "baseline",
    ArmVerdict.AMONG_BEST: "may be best",
    ArmVerdict.TOO_FEW_SEEDS: "too few seeds",
    ArmVerdict.NOT_COMPARED: "not compared",
}
_LEFT_OUT = (ArmVerdict.DIVERGED, ArmVerdict.REFERENCE)


def _verdict(one: ArmBeside) -> str:
    """The verdict in words."""
    if one.verdict is ArmVerdict.DIVERGED:
        return f"diverged in {one.diverged} of {counted(one.seeds, 'seed')}"
    return _VERDICTS.get(one.verdict) or str(one.verdict)


def _beside_baseline(names: Sequence[str], found: BestSet, figure: str, baseline: int) -> str:
    """Say which arms are better or worse than the baseline."""
    places = {
        verdict: [arm for arm, one in enumerate(found.control) if one.verdict is verdict]
        for verdict in (ArmVerdict.BETTER, ArmVerdict.WORSE, ArmVerdict.UNCLEAR)
    }
    said = []
    for verdict, arms in places.items():
        verb = "is" if len(arms) == 1 else "are"
        end = "cannot be told from it" if verdict is ArmVerdict.UNCLEAR else f"{verb} {verdict}"
        if arms:
            said.append(f"{_listed(names, arms)} {end}")
    compared = "; ".join(said) or "no arm can be compared"
    return f"Beside {_listed(names, [baseline])}, in {figure}: {compared}."


def _compared(found: BestSet) -> int:
    """Return how many arms were compared."""
    return sum(one.difference is not None for one in found.beside)


def _words(names: Sequence[str], found: BestSet, figure: str, better: Callable[..., int]) -> str:
    """Say which arms may be the best, which are worse, and how many seeds would decide."""
    basis = f"({CONFIDENCE:.0%} confidence, {counted(found.seeds, 'seed')})"
    compared = _compared(found)
    places = {
        verdict: [arm for arm, one in enumerate(found.beside) if one.verdict is verdict]
        for verdict in ArmVerdict
    }
    leader, said = "", []
    if found.too_few_seeds:
        needed = LEAST_SEEDS + (len(places[ArmVerdict.TOO_FEW_SEEDS]) == 2)
        most = max(one.seeds for one in found.beside)
        said.append(f"At least {needed} seeds are needed to tell arms apart, not {min(most, needed - 1)}.")
    elif compared < 2:
        said.append(f"In {figure}, no two arms have figures of the same seeds that can be compared.")
    elif found.arms:
        place = better(found.arms, key=lambda arm: found.beside[arm].difference or 0.0)
        leader, others = _listed(names, [place]), [arm for arm in found.arms if arm != place]
        said.append(
            f"{leader} leads in {figure}, but {_listed(names, others)} may be as good or better {basis}."
            if others
            else f"{leader} is the best arm in {figure} {basis}."
            if compared + sum(len(places[verdict]) for verdict in _LEFT_OUT) == len(names)
            else f"{leader} is the best of the {compared} arms that can be compared in {figure} {basis}."
        )
    if worse := places[ArmVerdict.WORSE]:
        listed = _listed(names, worse) if len(worse) <= NAMED else f"The other {len(worse)}"
        said.append(f"{listed} {'is' if len(worse) == 1 else 'are'} worse.")
    if diverged := places[ArmVerdict.DIVERGED]:
        said.append(f"{_listed(names, diverged)} diverged.")
    if compared > 1 and (unknown := places[ArmVerdict.NOT_COMPARED]):
        reason = "too few figures of seeds that others have"
        said.append(f"{_listed(names, unknown)} cannot be compared: {reason}.")
    if found.seeds_to_decide is not None and len(found.arms) > 1:
        said.append(
            f"About {counted(found.seeds_to_decide, 'seed')} would tell {leader} from the closest of them, if"
            " they differ as they seem to."
        )
    return " ".join(said)


def _listed(names: Sequence[str], arms: Sequence[int]) -> str:
    """The first names, and how many there are besides; names with a comma in quotation marks."""
    most = NAMED + (len(arms) == NAMED + 1)
    shown = [f'"{names[arm]}"' if "," in names[arm] else names[arm] for arm in arms[:most]]
    if len(arms) > most:
        return f"{', '.join(shown)} and {len(arms) - most} others"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
