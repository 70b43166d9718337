"""Coverage and power of the set of the best arms, simulated: the tables of docs/statistics.md.

python -m bench coverage [--arms 2,6,20] [--seeds 3,5,10,20] [--draws 1000] [--minutes 60]
    [--write docs/statistics.md]

Each cell is kept in `.bench/coverage.json` when it is done, and not computed again unless the number of
draws differs; remove the file after a change of the method. The page has a table for each number of arms.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.options import HOME, command
from fedcore.statistics.best_set import (
    ArmBeside,
    ArmVerdict,
    comparable,
    critical_value,
    find_best_arms,
    fit_arms,
)

Array = NDArray[np.float64]
HAIR = 1e-6
"""By this much the best arm is better than those that are as good: the least favourable means."""
FAR = 8.0
"""Half the arms are this much worse where power is measured."""
POWER_DRAWS = 100
BOLD_BELOW = 0.93
NOISY = 4.0
BEST_NOISY = "best 4 x"
WORST_NOISY = "worst 4 x"
BY_MEAN = "larger where worse"


def _quarter(means: Array, *, best: bool) -> Array:
    """Deviations of which those of a quarter of the arms are NOISY: of the best, or of the worst."""
    deviations, some = np.ones(len(means)), max(1, len(means) // 4)
    deviations[slice(some) if best else slice(-some, None)] = NOISY
    return deviations


DEVIATIONS: Mapping[str, Callable[[Array, np.random.Generator], Array]] = {
    "equal": lambda means, _: np.ones(len(means)),
    BEST_NOISY: lambda means, _: _quarter(means, best=True),
    WORST_NOISY: lambda means, _: _quarter(means, best=False),
    "log-normal, 0.7": lambda means, draw: np.exp(draw.normal(0, 0.7, len(means))),
    BY_MEAN: lambda means, _: 1 + (NOISY - 1) * means / min(means.min(), -HAIR),
}
"""Standard deviations of arms with these means, the best first."""
ERRORS: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "t, 5 df": lambda draw, shape: draw.standard_t(5, size=shape) * np.sqrt(3 / 5),
}
"""Errors of variance 1."""
MISSING = (0.0, 0.1)


class Setting(NamedTuple):
    """A cell of the tables."""

    arms: int
    seeds: int
    deviations: str
    errors: str
    missing: float
    """Probability with which a figure is missing."""


class Found(NamedTuple):
    """Shares of the draws of a cell, but for the last."""

    coverage: float
    """All intervals cover and the best arm does not leave, where all are nearly as good: at least this."""
    coverage_apart: float
    """The same share where half of the arms are FAR worse."""
    decided: float
    """Draws with intervals."""
    size: float
    """Median share of the arms that are not excluded, where half of them are FAR worse; of POWER_DRAWS."""


def main(arguments: Sequence[str]) -> None:
    """Print the tables, and write them where requested."""
    parser = command("coverage", __doc__)
    parser.add_argument("--arms", type=_integers, default=[2, 6, 20], help="numbers of arms")
    parser.add_argument("--seeds", type=_integers, default=[3, 5, 10, 20], help="numbers of seeds")
    parser.add_argument("--draws", type=int, default=1_000, help="draws of each cell")
    parser.add_argument("--minutes", type=float, default=inf, help="compute no new cell after this time")
    parser.add_argument("--home", type=Path, default=HOME, help="where cells are kept")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between their markers")
    options = parser.parse_args(arguments)
    found = _compute(options)
    for arms in options.arms:
        text = _table(arms, options.seeds, found, options.draws)
        print(text)
        if options.write is not None:
            report.put(options.write, f"coverage-{arms}", text)


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _compute(options: argparse.Namespace) -> Mapping[Setting, Found]:
    """Return the cells, those that are kept and those that are computed now."""
    path = options.home / "coverage.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    found = {}
    for cell in product(options.arms, options.seeds, DEVIATIONS, ERRORS, MISSING):
        setting = Setting(*cell)
        key = " / ".join(map(str, (*setting, options.draws)))
        if key not in kept:
            if time.monotonic() > until:
                continue
            kept[key] = measure(setting, options.draws)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept, indent=0))
            print(f"{key}: {kept[key]}", flush=True)
        found[setting] = Found(*kept[key])
    return found


def measure(setting: Setting, draws: int) -> Found:
    """Simulate a cell; power from POWER_DRAWS at most, since all arms are compared for it."""
    found = [_beside(setting, number) for number in range(min(draws, POWER_DRAWS))]
    near, apart = (
        float(np.mean([_covers(setting, number, means) for number in range(draws)]))
        for means in (_near(setting), _apart(setting.arms))
    )
    return Found(
        near,
        apart,
        float(np.mean([any(one.low is not None for one in beside) for beside in found])),
        median(sum(one.verdict is not ArmVerdict.WORSE for one in beside) for beside in found) / setting.arms,
    )


def _near(setting: Setting) -> Array:
    """Means a hair below the first, which is least favourable; where deviations follow from them, falling
    to NOISY below it.
    """
    if setting.deviations == BY_MEAN:
        return np.linspace(0, -NOISY, setting.arms)
    return np.array([0.0] + [-HAIR] * (setting.arms - 1))


def _apart(arms: int) -> Array:
    """Half of the means a hair below the first, and half FAR below."""
    means = np.full(arms, -HAIR)
    means[0] = 0
    means[arms - arms // 2 :] = -FAR
    return means


def _covers(setting: Setting, number: int, means: Array) -> bool:
    """Return whether the critical value of the best arm bounds all its comparisons.

    Then the best arm is not excluded, and all intervals cover (Edwards and Hsu 1983). They may cover
    otherwise too, where another arm of the set reaches further down, so that the share is a lower bound.
    """
    rows, table = comparable(_simulated(setting, number, means))
    if not rows:
        return True
    fit = fit_arms(table)
    errors = fit.means - means[rows]
    # The best of those that are compared comes first.
    return bool((errors - errors[0] <= critical_value(fit, 0) * fit.errors[0]).all())


def _beside(setting: Setting, number: int) -> Sequence[ArmBeside]:
    """Return each arm beside the best of the others, where half of the arms are FAR worse."""
    table = _simulated(setting, number, _apart(setting.arms))
    figures = [{seed: value for seed, value in enumerate(row.tolist()) if isfinite(value)} for row in table]
    return find_best_arms(figures, higher_is_better=True).beside


def _simulated(setting: Setting, number: int, means: Array) -> Array:
    """Return the figures of arms by seed, with nan where one is missing."""
    kinds = [*DEVIATIONS].index(setting.deviations), [*ERRORS].index(setting.errors)
    draw = np.random.default_rng(
        [setting.arms, setting.seeds, *kinds, MISSING.index(setting.missing), number]
    )
    shape = setting.arms, setting.seeds
    deviations = DEVIATIONS[setting.deviations](means, draw)
    table = means[:, None] + deviations[:, None] * ERRORS[setting.errors](draw, shape)
    return np.where(draw.uniform(size=shape) < setting.missing, np.nan, table)


def _table(arms: int, seeds: Sequence[int], found: Mapping[Setting, Found], draws: int) -> str:
    """Format the cells of a number of arms: coverage, and the share of the arms that are left."""
    rows = [
        [*kind[:2], f"{100 * kind[2]:.0f} %"]
        + [_formatted(found.get(Setting(arms, number, *kind))) for number in seeds]
        for kind in product(DEVIATIONS, ERRORS, MISSING)
    ]
    headings = ["deviations", "errors", "missing", *(f"{number} seeds" for number in seeds)]
    return f"**{arms} arms**, {draws:,} draws of each cell\n\n" + report.table(headings, rows)


def _formatted(found: Found | None) -> str:
    """Format a cell; the lower of the two coverages counts."""
    if found is None:
        return "not run"
    if found.decided == 0:
        return "too few"
    coverage = min(found.coverage, found.coverage_apart)
    text = f"{100 * coverage:.1f} %"
    return f"{f'**{text}**' if coverage < BOLD_BELOW else text}, {found.size:.2f}"
