"""Epsilon against closed forms, its monotony, and noise that is solved for."""

from __future__ import annotations

from math import erf, exp, inf, log, log1p, sqrt

import pytest

from fedcore.errors import SpecificationError
from fedcore.privacy import PRIVACY, PrivateRun
from fedcore.privacy.accounting import ORDERS, Accountant, GaussianRelease, epsilon
from fedcore.systems.participation import PARTICIPATIONS
from tests.builders.specifications import Document

DELTA = 1e-5


def run(**participation: object) -> PrivateRun:
    scheme = PARTICIPATIONS.validate({"kind": "full", **participation})
    return PrivateRun(scheme, 100, 20)


FULL, POISSON, FIXED = (
    run(),
    run(kind="bernoulli", probability=0.1),
    run(kind="uniform", clients_per_round=10),
)
RUNS = {"full": FULL, "bernoulli": POISSON, "uniform": FIXED}


def spent(run: PrivateRun, rounds: int = 20, **fields: object) -> float:
    return PRIVACY.validate({"kind": "client_level", "noise_multiplier": 1.0, **fields}).epsilon(run, rounds)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_renyi_divergences_without_sampling_have_a_closed_form(z: float, rounds: int) -> None:
    """T a / (2 z^2) for order a (Mironov, 2017), turned into epsilon as Canonne et al. (2020),
    Proposition 12, do.
    """
    expected = min(
        rounds * order / (2 * z**2) + log1p(-1 / order) - log(DELTA * order) / (order - 1) for order in ORDERS
    )
    assert spent(FULL, rounds, noise_multiplier=z) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_the_privacy_loss_without_sampling_has_a_closed_form(z: float, rounds: int) -> None:
    """Balle and Wang (2018): delta of the epsilon is delta."""

    def normal(value: float) -> float:
        return (1 + erf(value / sqrt(2))) / 2

    found, s = spent(FULL, rounds, noise_multiplier=z, accountant="pld"), sqrt(rounds) / z
    delta = normal(s / 2 - found / s) - exp(found) * normal(-s / 2 - found / s)
    assert delta == pytest.approx(DELTA, rel=1e-3)


def test_sampling_everyone_is_no_sampling() -> None:
    assert spent(run(kind="bernoulli", probability=1.0)) == spent(FULL)
    # Replacing a client changes the sum by up to 2 C, adding one by up to C.
    assert spent(run(kind="uniform", clients_per_round=100)) == spent(FULL, noise_multiplier=0.5)


@pytest.mark.parametrize("name", list(RUNS))
def test_epsilon_grows_with_rounds_and_falls_with_noise(name: str) -> None:
    run = RUNS[name]
    assert 0 == spent(run, 0) < spent(run, 1) < spent(run, 10) < spent(run, 20)
    assert spent(run, noise_multiplier=2.0) < spent(run) < spent(run, noise_multiplier=0.5)
    assert spent(run, noise_multiplier=0.0) == inf
    assert spent(run, delta=1e-3) < spent(run)


def test_smaller_samples_cost_less() -> None:
    some = [spent(run(kind="bernoulli", probability=q)) for q in (0.01, 0.1, 0.5, 1.0)]
    fixed = [spent(run(kind="uniform", clients_per_round=count)) for count in (1, 10, 50, 100)]
    assert some == sorted(some)
    assert fixed == sorted(fixed)
    assert len({*some}) == len({*fixed}) == 4


def test_the_privacy_loss_distribution_is_tighter() -> None:
    release = GaussianRelease(1.0, 10, 100)
    assert 0.5 < epsilon(release, 20, DELTA, "pld") / epsilon(release, 20, DELTA, "rdp") < 1


@pytest.mark.parametrize(
    ("name", "accountant"),
    [("full", "rdp"), ("full", "pld"), ("bernoulli", "rdp"), ("uniform", "rdp")],
)
def test_solved_noise_has_the_target_epsilon(name: str, accountant: Accountant) -> None:
    privacy = PRIVACY.validate({"kind": "client_level", "target_epsilon": 5.0, "accountant": accountant})
    z = privacy.noise(RUNS[name])
    assert privacy.epsilon(RUNS[name], 20) <= 5.0
    assert spent(RUNS[name], noise_multiplier=z - 0.002, accountant=accountant) > 5.0
    assert round(z, 3) == z


def test_a_target_that_hardly_any_noise_meets_is_refused() -> None:
    privacy = PRIVACY.validate({"kind": "client_level", "target_epsilon": 1e5})
    with pytest.raises(SpecificationError, match="target_epsilon"):
        privacy.noise(FULL)


def test_a_client_that_adds_noise_itself_pays_for_every_round_in_which_it_may_take_part() -> None:
    local: Document = {"kind": "local", "noise_multiplier": 8.0}
    privacy = PRIVACY.validate(local)
    listed = run(kind="trace", rounds=[[0, 1], [1, 2], [3], [1, 1]])
    # Two changes of a client differ by up to 2 C.
    once, thrice, always = (spent(FULL, count, noise_multiplier=4.0) for count in (1, 3, 20))
    assert privacy.epsilon(FULL, 20) == privacy.epsilon(POISSON, 20) == always
    assert [privacy.epsilon(listed, rounds) for rounds in (1, 3, 4)] == [
        once,
        spent(FULL, 2, noise_multiplier=4.0),
        thrice,
    ]
