"""The audit of a specification: what it reports, and what it refutes."""

from typing import Any

import numpy as np
import pytest

from fedcore import ExperimentSpec
from fedcore.core import Aggregator
from fedcore.errors import SpecificationError
from fedcore.privacy.client_level import ClientLevelPrivacy
from fedcore.testing.privacy.report import audit_privacy, binomial_bound
from tests.builders.specifications import Document, merged
from tests.testing.privacy.test_attacks import Doubled
from tests.testing.privacy.test_coupled import BASE, private, taking_part

FULL: Document = {**BASE, **private("client_level", noise_multiplier=0.5), "rounds": 2}


@pytest.mark.parametrize(
    ("participation", "kind"),
    [
        (taking_part("full"), "client_level"),
        (taking_part("bernoulli", probability=0.5), "client_level"),
        (taking_part("cyclic", clients_per_round=2), "dp_ftrl"),
    ],
)
def test_a_lower_bound_is_below_what_is_reported(participation: Document, kind: str) -> None:
    document = FULL | private(kind, noise_multiplier=0.5) | participation
    report = audit_privacy(ExperimentSpec.model_validate(document))
    (arm,) = report.arms
    assert not report.refuted
    assert arm.violations == []
    assert arm.guessed is not None
    assert 0.5 < arm.guessed.epsilon_at_least < arm.epsilon
    assert arm.guessed.epsilon_at_least <= arm.guessed.epsilon_shown_at_most
    assert arm.guessed.canaries == 650


class Understated(ClientLevelPrivacy):
    """Counts a fiftieth of the rounds."""

    def epsilon(self, run: Any, rounds: int) -> float:
        return super().epsilon(run, rounds) / 50


class Twice(ClientLevelPrivacy):
    def aggregator(self, within: Aggregator, run: Any) -> Aggregator:
        mean: Any = super().aggregator(within, run)
        return Doubled(mean.clip_norm, mean.noise_multiplier, mean.expected)


@pytest.mark.parametrize("mechanism", [Understated, Twice])
def test_a_false_epsilon_is_refuted(mechanism: type[ClientLevelPrivacy]) -> None:
    spec = ExperimentSpec.model_validate(FULL)
    assert spec.privacy is not None
    other = mechanism.model_validate(spec.privacy.model_dump())
    (arm,) = audit_privacy(spec.model_copy(update={"privacy": other})).arms
    assert arm.refuted
    assert bool(arm.violations) is (mechanism is Twice)
    if mechanism is Twice:
        assert "moves by 2 times its sensitivity (round 1, canary `huge`)" in arm.violations[0]


def test_arms_are_audited_each_by_itself() -> None:
    spec = ExperimentSpec.model_validate({**FULL, "sweep": {"privacy.noise_multiplier": [0.5, 2.0]}})
    report = audit_privacy(spec, canaries_guessed=60)
    assert [arm.arm for arm in report.arms] == ["noise_multiplier=0.5", "noise_multiplier=2.0"]
    assert report.arms[0].epsilon > report.arms[1].epsilon


@pytest.mark.parametrize("kind", ["local", "example_level"])
def test_a_mechanism_whose_canaries_cannot_be_guessed_says_why(kind: str) -> None:
    (arm,) = audit_privacy(ExperimentSpec.model_validate({**FULL, **private(kind)})).arms
    assert arm.guessed is None
    assert "needs clients that are added or count as zero" in arm.note
    assert arm.violations == []


def test_a_specification_without_privacy_is_refused() -> None:
    with pytest.raises(SpecificationError, match="nothing to audit"):
        audit_privacy(ExperimentSpec.model_validate(BASE))


@pytest.mark.parametrize(("hidden", "parameters"), [([1], 85), ([3], 235)])
def test_a_model_without_room_for_canaries_is_audited_by_coupled_runs_alone(
    hidden: list[int], parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.testing.privacy.report.CANARY_BYTES", 8 * 90 * 50)
    model = {"problem": {"model": {"kind": "mlp", "hidden": hidden}}}
    (arm,) = audit_privacy(ExperimentSpec.model_validate(merged(FULL | taking_part("full"), model))).arms
    assert arm.violations == []
    assert (arm.guessed is None) is (parameters > 90)
    assert arm.note == (
        f"a model of {parameters} parameters has no room for 50 canaries, the fewest that say anything"
        if parameters > 90
        else ""
    )


def test_the_bound_of_guesses_is_that_of_randomised_response_where_delta_is_zero() -> None:
    """380 right guesses of 380 show about epsilon 4: q^380 = 0.001."""
    assert binomial_bound(380, 380, 1_000, 0.0) == pytest.approx(-np.log(0.001 ** (-1 / 380) - 1), rel=1e-6)
    assert binomial_bound(380, 190, 1_000, 0.0) == 0.0
    assert binomial_bound(380, 380, 1_000, 1e-5) < binomial_bound(380, 380, 1_000, 0.0)
