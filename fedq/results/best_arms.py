"""The arms of results that may be the best, and the conclusion in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import get_args

from fedcore.statistics.best_set import BestSet, BestVerdict, ComparisonScale, find_best_arms
from fedcore.statistics.significance import LEAST_PAIRS
from fedcore.statistics.summary import CONFIDENCE, better_of
from fedq.results.frames import RunFigure, TargetCost
from fedq.results.presentation import counted, is_share
from fedq.schemas import ArmBesideBest, BestArms

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


def best_arms(
    names: Sequence[str],
    figures: Sequence[Mapping[int, float]],
    diverged: Sequence[Collection[int]],
    metric: str,
    by: RunFigure | TargetCost,
    *,
    target: float = 0.0,
    horizon: float = inf,
) -> BestArms | None:
    """The arms that may be the best by these figures, by seed; None for a single arm, for more than
    MOST_COMPARED with figures, and for a metric that has no better and worse.

    Costs are those of reaching the value `target` of the metric, and count up to the `horizon`.
    """
    cost = by in get_args(TargetCost)
    better = min if cost else better_of(metric)
    if better is None or len(names) < 2 or sum(map(bool, figures)) > MOST_COMPARED:
        return None
    scale = ComparisonScale.LOG if cost else _scale_of(metric)
    found = _found(figures, diverged, scale, higher_is_better=better is max)
    figure = _WORDS[by].format(metric=metric.replace("_", " "), target=target)
    said = [_words(names, found, figure, better)]
    if horizon < inf:
        said.append(
            f"Runs count up to {horizon:,.4g} {by.replace('_', ' ')}, by which some had not reached it."
        )
    return BestArms(
        metric=metric,
        by=by,
        arms=list(found.arms),
        beside=[ArmBesideBest.model_validate(one._asdict()) for one in found.beside],
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
    *,
    higher_is_better: bool,
) -> BestSet:
    try:
        return find_best_arms(figures, higher_is_better=higher_is_better, scale=scale, diverged=diverged)
    except ValueError:  # A loss of 0, for example, has no logarithm.
        return find_best_arms(figures, higher_is_better=higher_is_better, diverged=diverged)


def _words(names: Sequence[str], found: BestSet, figure: str, better: Callable[..., int]) -> str:
    """Say which arms may be the best, which are worse, and how many seeds would decide."""
    basis = f"({CONFIDENCE:.0%} confidence, {counted(found.seeds, 'seed')})"
    places = {
        verdict: [arm for arm, one in enumerate(found.beside) if one.verdict is verdict]
        for verdict in BestVerdict
    }
    leader, said = "", []
    if found.too_few_seeds:
        needed = LEAST_PAIRS + (len(places[BestVerdict.TOO_FEW_SEEDS]) == 2)
        said.append(f"At least {needed} seeds are needed to tell arms apart, not {found.seeds}.")
    elif found.arms:
        place = better(found.arms, key=lambda arm: found.beside[arm].difference or 0.0)
        leader, others = _listed(names, [place]), [arm for arm in found.arms if arm != place]
        said.append(
            f"{leader} leads in {figure}, but {_listed(names, others)} may be as good or better {basis}."
            if others
            else f"{leader} is the best arm in {figure} {basis}."
        )
    if worse := places[BestVerdict.WORSE]:
        listed = _listed(names, worse) if len(worse) <= NAMED else f"The other {len(worse)}"
        said.append(f"{listed} {'is' if len(worse) == 1 else 'are'} worse.")
    if diverged := places[BestVerdict.DIVERGED]:
        said.append(f"{_listed(names, diverged)} diverged.")
    if unknown := places[BestVerdict.NOT_COMPARED]:
        said.append(f"{_listed(names, unknown)} cannot be compared yet.")
    if found.seeds_to_decide is not None and len(found.arms) > 1:
        said.append(
            f"With about {counted(found.seeds_to_decide, 'seed')} {leader} would be told from the others, if"
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
