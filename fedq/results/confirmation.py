"""Chosen arms of an experiment on fresh seeds: figures that did not select the arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedcore.statistics.summary import better_of
from fedq.results.presentation import counted

if TYPE_CHECKING:
    from fedq.schemas import ArmResult, Results

CONFIRMED_ARMS, CONFIRMING_SEEDS = 5, 10
"""Arms and seeds of a confirmation, if none are named."""
CONFIRMATION = "confirmation"
"""Tag of an experiment whose seeds did not select its arms."""


def confirming_specification(
    specification: Mapping[str, Any], results: Results, arms: int | Sequence[str], seeds: int
) -> dict[str, Any]:
    """The specification of an experiment of `arms` of another one, its leading ones and lines of reference if
    given by their number, with `seeds` seeds that it does not have. `results` are those of the other one.

    Raises ValueError if there are fewer than two such arms, or no arm has a name that is given.
    """
    chosen = _leading(results, arms) if isinstance(arms, int) else _named(results, arms)
    if len(chosen) < 2:
        raise ValueError(
            f"{results.experiment_id} has {counted(len(chosen), 'arm')} to choose, and two or more are needed"
            ": name another, or wait for its runs"
        )
    document = dict(specification)
    document.pop("search", None)
    first = max(document["seeds"]) + 1
    return document | {
        "name": f"{results.name[:180]}, confirmed",
        "tags": [*dict.fromkeys([*document.get("tags", ()), CONFIRMATION])],
        "description": f"Arms of {results.experiment_id} on seeds that did not select them.",
        "seeds": list(range(first, first + seeds)),
        "sweep": {"arms": [{"name": arm.name, **arm.settings} for arm in chosen]},
    }


def _leading(results: Results, count: int) -> list[ArmResult]:
    found = results.best_arms
    if found is None:
        return []
    ahead = {place: one.difference for place, one in enumerate(found.beside) if one.difference is not None}
    order = sorted(ahead, key=ahead.__getitem__, reverse=better_of(found.metric) is max)
    chosen = {*order[:count]}
    return [arm for place, arm in enumerate(results.arms) if place in chosen or arm.reference]


def _named(results: Results, names: Sequence[str]) -> list[ArmResult]:
    by_name = {arm.name: arm for arm in results.arms}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"there is no arm {unknown[0]!r} among: {'; '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]
