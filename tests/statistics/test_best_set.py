"""The set of the best arms against published quantiles, SciPy, formulas by hand, and its promise."""

from math import exp, inf, nan, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore.lazy import LazyModule
from fedcore.statistics.best_set import (
    ArmBeside,
    ArmVerdict,
    BestSet,
    ComparisonScale,
    _least_squares,
    _own_variances,
    _quantile,
    _shrink,
    comparable,
    critical_value,
    find_best_arms,
    fit_arms,
)
from fedcore.statistics.summary import LEVEL

stats: Any = LazyModule("scipy.stats")
HALF = sqrt(0.5)
MARGIN = 5e-3
"""Shares are rounded to four digits, and arms that are tied in them may round apart."""


def find(table: Any, **options: Any) -> BestSet:
    """From a table with a row for each arm, and nan where a figure is missing."""
    figures = [{seed: float(value) for seed, value in enumerate(row) if not np.isnan(value)} for row in table]
    return find_best_arms(figures, **{"higher_is_better": True} | options)


def draw(arms: int, seeds: int, key: int = 0, means: Any = 0.0) -> Any:
    """Normal figures with effects of arms and seeds."""
    generator = np.random.default_rng([arms, seeds, key])
    effects = np.broadcast_to(means, arms)[:, None] + 3 * generator.normal(size=seeds)
    return effects + generator.normal(size=(arms, seeds))


def verdicts(found: BestSet) -> list[ArmVerdict | None]:
    return [one.verdict for one in found.beside]


def ends(found: BestSet) -> Any:
    return np.array([[one.low, one.high] for one in found.beside], dtype=float)


# Quantiles


@pytest.mark.parametrize(("arms", "seeds", "c"), [(6, 5, 2.39), (60, 3, 2.97), (200, 3, 3.22)])
def test_quantiles_of_equal_arms_are_those_of_the_tables(arms: int, seeds: int, c: float) -> None:
    found = _quantile((HALF,) * (arms - 1), (arms - 1) * (seeds - 1), two_sided=False)
    assert found == pytest.approx(c, abs=6e-3)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize(
    ("shares", "df"),
    [((HALF,) * 5, 20.0), ((0.2, 0.5, 0.9), 4.5), ((0.95,) * 4, 6.0), ((0.1, 0.97), 3.0)],
)
def test_all_stay_below_the_quantile_as_the_multivariate_t_says(
    shares: tuple[float, ...], df: float, two_sided: bool
) -> None:
    correlation = np.outer(shares, shares)
    np.fill_diagonal(correlation, 1)
    c = _quantile(shares, df, two_sided)
    chance = stats.multivariate_t(shape=correlation, df=df, seed=1).cdf(
        np.full(len(shares), c), lower_limit=np.full(len(shares), -c if two_sided else -inf), maxpts=200_000
    )
    assert chance == pytest.approx(1 - LEVEL, abs=1e-3)


@pytest.mark.parametrize(("groups", "size"), [(2, 4), (5, 6)])
def test_the_two_sided_quantile_is_dunnetts(groups: int, size: int) -> None:
    """One control and equal samples, all independent."""
    samples = np.random.default_rng(3).normal(size=(groups + 1, size))
    found = stats.dunnett(*samples[1:], control=samples[0], random_state=5).confidence_interval(1 - LEVEL)
    error = sqrt(2 * samples.var(axis=1, ddof=1).mean() / size)
    c = _quantile((HALF,) * groups, (groups + 1) * (size - 1), two_sided=True)
    assert (found.high - found.low) / (2 * error) == pytest.approx(c, abs=0.01)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("df", [2.0, 7.3, 400.0])
def test_a_single_comparison_has_students_quantile(df: float, two_sided: bool) -> None:
    assert _quantile((0.6,), df, two_sided) == pytest.approx(
        stats.t.ppf(1 - LEVEL / (2 if two_sided else 1), df)
    )


# Variances


def test_own_variances_of_three_arms_are_covariances_of_differences() -> None:
    """Grubbs (1948): sigma_1^2 is the covariance of y_1 - y_2 and y_1 - y_3, for any effects of seeds."""
    table = np.random.default_rng(3).normal(size=(3, 12)) * [[1.0], [1.3], [1.6]]
    arm, seed = np.nonzero(np.isfinite(table))
    solve = _least_squares(arm, seed)
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    expected = [
        np.cov(table[i] - table[j], table[i] - table[h])[0, 1]
        for i, j, h in ((0, 1, 2), (1, 0, 2), (2, 0, 1))
    ]
    assert _own_variances(arm, seed, solve, residuals.ravel()) == pytest.approx(expected)


@pytest.mark.parametrize("arms", [4, 7])
def test_own_variances_are_those_of_grubbs(arms: int) -> None:
    table = np.random.default_rng(arms).normal(size=(arms, 30)) * np.linspace(1, 2, arms)[:, None]
    arm, seed = np.nonzero(np.isfinite(table))
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    squares = (residuals**2).sum(1) / 29
    expected = arms / (arms - 2) * (squares - squares.sum() / (arms * (arms - 1)))
    assert (expected > squares / 4).all()
    assert _own_variances(arm, seed, _least_squares(arm, seed), residuals.ravel()) == pytest.approx(expected)


def test_own_variances_with_missing_cells_have_no_bias() -> None:
    """Given the means of the squared residuals they are the variances, whatever these are."""
    present = np.ones((4, 6), bool)
    present[[0, 1, 1, 3], [5, 0, 2, 4]] = False
    arm, seed = np.nonzero(present)
    design = np.hstack([np.eye(4)[arm], np.eye(6)[seed]])
    residual = np.eye(len(arm)) - design @ np.linalg.pinv(design)
    truth = np.array([1.0, 1.2, 2.5, 1.6])
    squares = residual**2 @ truth[arm]
    found = _own_variances(arm, seed, _least_squares(arm, seed), np.sqrt(squares))
    assert found == pytest.approx(truth)


def test_shrinkage_finds_how_variances_are_spread() -> None:
    """2,000 variances d_0 s_0^2 / chi^2(d_0), d_0 = 6 and s_0^2 = 2, of mean d_0 s_0^2 / (d_0 - 2) = 3,
    estimated with 4 degrees of freedom.
    """
    generator, free = np.random.default_rng(0), np.full(2_000, 4)
    truth = 6 * 2 / generator.chisquare(6, 2_000)
    own = truth * generator.chisquare(4, 2_000) / 4
    found, prior_df = _shrink(own, free, float(own.mean()))
    assert prior_df == pytest.approx(6, rel=0.2)
    prior = (found * (prior_df + 4) - 4 * own) / prior_df
    assert prior == pytest.approx(3, rel=0.1)
    assert np.mean((found - truth) ** 2) < np.mean((own - truth) ** 2)


def test_variances_that_agree_are_pooled_as_hsu_does() -> None:
    """A Latin square of deviations: all arms have the same residuals, and the classical method holds."""
    deviations = np.array([2.0, -1.0, 0.5, -2.0, 0.5])
    square = np.array([np.roll(deviations, arm) for arm in range(5)])
    means = np.array([0.0, 0.4, 1.0, 3.0, 4.5])
    found = find(square + means[:, None] + np.arange(5.0))
    error = sqrt(2 * 5 * (deviations @ deviations) / 16 / 5)
    reach = _quantile((HALF,) * 4, 16, two_sided=False) * error
    member = means > 4.5 - reach
    assert [*found.arms] == np.flatnonzero(member).tolist() == [3, 4]
    high = np.maximum(0, means - [4.5, 4.5, 4.5, 4.5, 3.0] + reach)
    low = [*(means[:3] - 4.5 - reach), 3.0 - 4.5 - reach, min(0.0, 4.5 - 3.0 - reach)]
    assert ends(found) == pytest.approx(np.transpose([low, high]), rel=1e-3)


# Two arms


@pytest.mark.parametrize("key", range(6))
def test_two_arms_are_compared_by_the_paired_test(key: int) -> None:
    table = draw(2, 5, key, (0.0, 1.2))
    found = find(table, control=0)
    assert (found.arms == (1,)) == (stats.ttest_rel(*table, alternative="less").pvalue < LEVEL)
    expected = stats.ttest_rel(table[1], table[0]).confidence_interval(1 - LEVEL)
    assert found.control[0] == ArmBeside(5, 0, None)
    assert found.control[1][3:] == pytest.approx(
        ((table[1] - table[0]).mean(), expected.low, expected.high), rel=1e-6
    )
    assert (found.control[1].verdict is ArmVerdict.BETTER) == (expected.low > 0)


def test_seeds_that_only_one_of_two_arms_has_change_nothing() -> None:
    table = draw(2, 8, means=(0.0, 0.5))
    table[0, 6] = table[1, 7] = nan
    assert ends(find(table)) == pytest.approx(ends(find(table[:, :6])))


# Properties

TABLES = st.tuples(st.integers(2, 5), st.integers(4, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=st.integers(-400, 400).map(lambda step: step / 16))
)


@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_intervals_and_verdicts_agree(table: Any) -> None:
    found = find(table)
    for arm, one in enumerate(found.beside):
        assert one.low is not None
        assert one.high is not None
        assert one.difference is not None
        assert one.low <= 0 <= one.high
        assert one.low - 1e-9 <= one.difference <= one.high + 1e-9
        assert (one.verdict is ArmVerdict.WORSE) == (arm not in found.arms)
        assert (one.verdict is ArmVerdict.BEST) == (found.arms == (arm,))
        assert (one.verdict is ArmVerdict.WORSE) == (one.low < 0 == one.high)
        assert (one.verdict is ArmVerdict.BEST) == (one.low == 0 < one.high)
    assert int(table.mean(1).argmax()) in found.arms


@settings(max_examples=40, deadline=None)
@given(TABLES, st.data())
def test_effects_of_seeds_order_and_sign_do_not_matter(table: Any, data: st.DataObject) -> None:
    found = find(table)
    tolerance = {"rel": MARGIN, "abs": MARGIN * (1 + np.abs(table).max())}
    shift = data.draw(arrays(float, table.shape[1], elements=st.integers(-50, 50).map(float)))
    assert ends(find(table + shift)) == pytest.approx(ends(found), **tolerance)
    order = data.draw(st.permutations(range(len(table))))
    assert ends(find(table[order])) == pytest.approx(ends(found)[order], **tolerance)
    assert ends(find(-table, higher_is_better=False)) == pytest.approx(-ends(found)[:, ::-1])


# Scales


def test_losses_are_compared_by_ratios() -> None:
    """On the scale of logarithms the paired interval is of a ratio, applied to the other arm's mean."""
    table = np.exp(draw(2, 6, 2, (0.0, 0.6)))
    found = find(table, higher_is_better=False, scale=ComparisonScale.LOG)
    apart = np.log(table[1]) - np.log(table[0])
    reach = stats.t.ppf(1 - LEVEL, 5) * apart.std(ddof=1) / sqrt(6)
    other = exp(np.log(table[0]).mean())
    one = found.beside[1]
    assert one.difference == pytest.approx(other * (exp(apart.mean()) - 1))
    assert one[4:6] == pytest.approx(
        (min(0.0, other * (exp(apart.mean() - reach) - 1)), max(0.0, other * (exp(apart.mean() + reach) - 1)))
    )


def test_units_of_a_loss_change_no_verdict() -> None:
    table = np.exp(draw(5, 4, 1, (0.0, 1.0, 2.0, 4.0, 8.0)))
    found, scaled = (
        find(scale * table, higher_is_better=False, scale=ComparisonScale.LOG) for scale in (1.0, 1e-200)
    )
    assert scaled.arms == found.arms
    assert ends(scaled) == pytest.approx(1e-200 * ends(found))


def test_accuracies_are_compared_by_logits() -> None:
    table = 1 / (1 + np.exp(-draw(3, 4, 5, (0.0, 2.0, 5.0))))
    found = find(table, scale=ComparisonScale.LOGIT)
    on_scale = find(np.log(table / (1 - table)))
    assert verdicts(found) == verdicts(on_scale)
    means = np.log(table / (1 - table)).mean(1)
    for arm, (one, other) in enumerate(zip(found.beside, on_scale.beside, strict=True)):
        reference = np.delete(means, arm).max()
        assert one.low is not None
        assert other.low is not None
        below = reference + other.low
        assert one.low == pytest.approx(1 / (1 + exp(-below)) - 1 / (1 + exp(-reference)))


def test_an_accuracy_of_one_counts_as_half_a_sample_below() -> None:
    table = np.array([[1.0, 0.999, 1.0, 0.998], [0.9, 0.91, 0.92, 0.9], [0.1, 0.12, 0.0, 0.1]])
    assert find(table, scale=ComparisonScale.LOGIT).arms[0] == 0
    assert np.isfinite(ends(find(table, scale=ComparisonScale.LOGIT))).all()


@pytest.mark.parametrize(
    ("scale", "value"),
    [(ComparisonScale.LOG, 0.0), (ComparisonScale.LOGIT, 1.5), (ComparisonScale.LOGIT, -0.1)],
)
def test_a_figure_off_the_scale_is_named(scale: ComparisonScale, value: float) -> None:
    with pytest.raises(ValueError, match=f"{value:g} is not .* requires: choose identity"):
        find([[0.5, 0.5, value], [0.5, 0.5, 0.5]], scale=scale)


# Missing cells, diverged arms, and too little to compare


def test_missing_cells_change_nothing_where_effects_add_exactly() -> None:
    means, seeds = np.array([1.0, 4.0, 2.5, 4.0]), np.array([0.0, 7.0, -3.0, 1.0, 2.0])
    table = means[:, None] + seeds
    table[[0, 1, 1, 2], [0, 3, 4, 1]] = nan
    found = find(table)
    assert found.arms == (1, 3)
    assert [one.difference for one in found.beside] == pytest.approx([-3, 0, -1.5, 0])
    assert ends(found) == pytest.approx(np.array([[-3, 0], [0, 0], [-1.5, 0], [0, 0]]), abs=1e-9)
    assert verdicts(found) == [
        ArmVerdict.WORSE, ArmVerdict.AMONG_BEST, ArmVerdict.WORSE, ArmVerdict.AMONG_BEST
    ]  # fmt: skip
    assert find(table[:3]).beside[1].verdict is ArmVerdict.BEST


def test_with_missing_cells_comparisons_correlate_nearly_by_one_factor() -> None:
    """The quantile beside the multivariate t with the correlations of the fit themselves."""
    generator = np.random.default_rng(4)
    table = generator.normal(size=(6, 6)) * [[1.0], [1.0], [3.0], [1.0], [2.0], [1.0]]
    table[[0, 0, 1, 2, 3, 4], [0, 3, 1, 5, 2, 2]] = nan
    fit = fit_arms(table)
    arm, seed = np.nonzero(np.isfinite(table))
    solve = _least_squares(arm, seed)[:6]
    for control in range(6):
        contrasts = np.delete(solve, control, 0) - solve[control]
        covariance = (contrasts * fit.variances[arm]) @ contrasts.T
        errors = np.sqrt(covariance.diagonal())
        assert errors == pytest.approx(np.delete(fit.errors[control], control))
        c = critical_value(fit._replace(means=np.zeros(6)), control)
        law = stats.multivariate_t(
            shape=covariance / np.outer(errors, errors), df=float(fit.df[control]), seed=2
        )
        assert law.cdf(np.full(5, c)) == pytest.approx(1 - LEVEL, abs=3e-3)


@given(
    table=arrays(float, (4, 4), elements=st.floats(-10, 10, width=16)),
    control=st.integers(0, 3),
    higher=st.booleans(),
)
def test_verdicts_beside_a_control_are_the_signs_of_their_intervals(
    table: Any, control: int, higher: bool
) -> None:
    """Negated figures of which less is better have the same verdicts."""
    for one in find(table, higher_is_better=higher, control=control).control:
        if one.verdict is None:
            continue
        assert one.low is not None
        assert one.high is not None
        above, below = one.low > 0, one.high < 0
        better, worse = (above, below) if higher else (below, above)
        signs = {ArmVerdict.BETTER: better, ArmVerdict.WORSE: worse}
        assert signs.get(one.verdict, not better and not worse)
        assert one.low <= (one.difference or 0.0) <= one.high
    mirrored = find(-table, higher_is_better=not higher, control=control).control
    found = find(table, higher_is_better=higher, control=control).control
    assert [one.verdict for one in mirrored] == [one.verdict for one in found]


def test_a_diverged_arm_is_named_and_not_compared() -> None:
    table = draw(4, 5, 1, (0.0, 0.0, 0.0, 50.0))
    found = find(table, diverged=[(), (), (), (2,)], control=0)
    assert found.beside[3] == ArmBeside(5, 1, ArmVerdict.DIVERGED)
    assert found.control[3] == ArmBeside(5, 1, ArmVerdict.DIVERGED)
    assert 3 not in found.arms
    assert found.beside[:3] == find(table[:3]).beside
    infinite = [dict(enumerate(row.tolist())) for row in table]
    infinite[3][2] = inf
    assert find_best_arms(infinite, higher_is_better=True).beside[3] == ArmBeside(5, 1, ArmVerdict.DIVERGED)


def test_the_one_arm_that_did_not_diverge_is_left() -> None:
    found = find(draw(3, 4), diverged=[(1,), (), (0, 1, 2, 3)])
    assert found.arms == (1,)
    assert verdicts(found) == [ArmVerdict.DIVERGED, ArmVerdict.NOT_COMPARED, ArmVerdict.DIVERGED]
    assert not found.too_few_seeds


@pytest.mark.parametrize(("arms", "seeds"), [(2, 1), (5, 1), (2, 2), (5, 2), (2, 3)])
def test_too_few_seeds_conclude_nothing(arms: int, seeds: int) -> None:
    found = find(draw(arms, seeds, means=np.arange(arms) * 100.0), control=0)
    assert (found.too_few_seeds, found.arms) == (True, ())
    assert [one.verdict for one in found.control] == [None, *[ArmVerdict.TOO_FEW_SEEDS] * (arms - 1)]
    assert all(one.difference is None for one in found.control)
    assert set(verdicts(found)) == {ArmVerdict.TOO_FEW_SEEDS}
    assert all(one.low is one.high is None for one in found.beside)
    assert (found.seeds_to_decide is None) == (seeds == 1)


def test_three_arms_of_three_seeds_and_two_of_four_are_enough() -> None:
    for arms, seeds in ((3, 3), (2, 4)):
        found = find(draw(arms, seeds, means=np.arange(arms) * 100.0))
        assert (found.too_few_seeds, found.arms) == (False, (arms - 1,))


def test_arms_without_enough_in_common_are_not_compared() -> None:
    table = np.full((6, 7), nan)
    table[:3, :4] = draw(3, 4)
    table[3, 0] = 100.0
    table[4:, 4:] = draw(2, 3)
    found = find(table)
    assert verdicts(found)[3:] == [ArmVerdict.NOT_COMPARED] * 3
    assert found.beside[:3] == find(table[:3, :4]).beside
    assert (found.seeds, found.beside[3].seeds) == (4, 1)
    rows, kept = comparable(table)
    assert (rows, kept.shape) == ([0, 1, 2], (3, 4))


@pytest.mark.parametrize("figures", [[], [{}], [{}, {}], [{0: 1.0}], [{0: 1.0}, {}]])
def test_nothing_to_compare_has_no_comparisons(figures: list[dict[int, float]]) -> None:
    found = find_best_arms(figures, higher_is_better=True)
    assert (len(found.beside), found.control) == (len(figures), ())
    beside = find_best_arms(figures, higher_is_better=True, control=0).control if figures else ()
    assert [one.difference for one in beside] == [None] * len(figures)
    assert found.arms == tuple(arm for arm, by_seed in enumerate(figures) if by_seed)


def test_arms_that_are_the_same_stay_together() -> None:
    table = draw(4, 5, 3, (0.0, 2.0, -9.0, 0.0))
    table[0] = table[1]
    found = find(table)
    assert {0, 1} <= set(found.arms)
    assert ends(found)[0] == pytest.approx(ends(found)[1])


# Planning


def test_the_seeds_that_decide_are_those_at_which_the_gap_is_the_half_width() -> None:
    table = draw(2, 5, 1, (0.0, 0.6))
    apart = table[1] - table[0]
    found = find(table)
    assert len(found.arms) == 2
    variance = apart.var(ddof=1) * 4 / stats.chi2.ppf(0.2, 4)
    needed = next(
        b for b in range(6, 10_000) if stats.t.ppf(0.95, b - 1) * sqrt(variance / b) <= abs(apart.mean())
    )
    assert found.seeds_to_decide == (needed if needed <= 1_000 else None)


def test_noise_asks_for_more_seeds_and_a_decision_for_none() -> None:
    noise = draw(5, 4, 6)
    noise -= noise.mean(1, keepdims=True)
    counts = [
        find(scale * noise + np.array([0.0, 0.0, 0.0, 0.0, 1.0])[:, None]).seeds_to_decide
        for scale in (0.01, 1.0, 2.0, 100.0)
    ]
    assert counts[0] is counts[3] is None
    assert counts[1] is not None
    assert counts[2] is not None
    assert 4 < counts[1] < counts[2]


# Promise


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "seeds", "deviation", "least"), [(6, 3, 1.0, 0.95), (6, 5, 4.0, 0.9)])
def test_a_best_arm_stays_and_all_intervals_cover(
    arms: int, seeds: int, deviation: float, least: float
) -> None:
    """400 experiments, the best arm by a hair and with a deviation of its own; two standard errors of
    the share are allowed.
    """
    generator, kept = np.random.default_rng(7), 0
    for _ in range(400):
        noise = generator.normal(size=(arms, seeds))
        noise[0] = deviation * noise[0] + 1e-6
        found = find(noise + generator.normal(size=seeds))
        low, high = ends(found).T
        truth = np.array([1e-6] + [-1e-6] * (arms - 1))
        kept += 0 in found.arms and bool((low <= truth).all() and (truth <= high).all())
    assert kept / 400 > least - 2 * sqrt(least * (1 - least) / 400)


def test_a_best_arm_is_found_among_worse_ones_with_three_seeds() -> None:
    found = find(draw(60, 3, means=[8.0] * 2 + [0.0] * 58))
    assert found.arms
    assert set(found.arms) <= {0, 1}


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1e100, 1e307])
def test_the_set_does_not_depend_on_the_unit_of_the_figures(size: float) -> None:
    """However large or small the numbers are."""
    figures = np.array([[1.0, 1.2, 0.9, 1.1], [2.0, 2.3, 1.8, 2.1], [2.1, 2.2, 1.9, 2.2]])
    one, other = find(figures), find(size * figures)
    assert other.arms == one.arms
    assert [found.low for found in other.beside] == pytest.approx(
        [size * (found.low or 0) for found in one.beside]
    )
