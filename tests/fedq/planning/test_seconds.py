"""The time of a plan by the rates of runs that were seen."""

import pytest

from fedq.planning.estimates import plan
from fedq.planning.seconds import SPREAD, add_seconds
from fedq.schemas import Plan
from tests.builders.specifications import DIGITS, Document, specification

LOGISTIC = "logistic, engine auto"
SEEN = {LOGISTIC: [4e6, 1e6, 2e6], "mlp, engine vectorised": [5e7]}


def _timed(changes: Document, seen: dict[str, list[float]]) -> Plan:
    spec = specification(DIGITS, **changes)
    return add_seconds(plan(spec), spec, lambda kind: seen.get(kind, []), "here")


def test_the_range_is_the_work_at_the_fastest_and_the_slowest_rate() -> None:
    timed = _timed({"seeds": [0, 1]}, SEEN)
    work = 2 * timed.arms[0].work
    assert timed.seconds_low == pytest.approx(work / 4e6 / SPREAD)
    assert timed.seconds_high == pytest.approx(work / 1e6 * SPREAD)
    assert timed.seconds_source == "3 recent runs of logistic, engine auto, here"


def test_a_kind_that_was_never_seen_has_no_time_and_is_named() -> None:
    for changes, kind in (
        ({"execution": {"engine": "reference"}}, "logistic, engine reference"),
        ({"problem": {"model": {"kind": "mlp"}}}, "mlp, engine auto"),
    ):
        timed = _timed(changes, SEEN)
        assert (timed.seconds_low, timed.seconds_high) == (None, None)
        assert timed.seconds_source == f"no run of this kind ({kind}) has been seen here yet"
        assert min(timed.rounds, timed.gradients, timed.bytes_up, timed.arms[0].work) > 0


def test_arms_of_several_kinds_take_their_times_one_after_another() -> None:
    models = {"sweep": {"problem.model": [{"kind": "logistic"}, {"kind": "mlp"}]}}
    assert _timed(models, SEEN).seconds_low is None
    timed = _timed(models, {LOGISTIC: [1e6], "mlp, engine auto": [5e7]})
    logistic, mlp = timed.arms
    assert timed.seconds_low == pytest.approx((logistic.work / 1e6 + mlp.work / 5e7) / SPREAD)
    assert (
        timed.seconds_source
        == "1 recent run of logistic, engine auto, here; 1 recent run of mlp, engine auto, here"
    )


def test_a_search_takes_the_share_of_rounds_that_it_plays() -> None:
    sweep = {"local.lr": [0.1, 0.05, 0.02, 0.01]}
    search = {"kind": "successive_halving", "metric": "train_loss", "eta": 2, "min_rounds": 1}
    whole, halved = _timed({"sweep": sweep}, SEEN), _timed({"sweep": sweep, "search": search}, SEEN)
    assert halved.search is not None
    assert whole.seconds_low is not None
    assert halved.seconds_low == pytest.approx(whole.seconds_low * halved.search.rounds / whole.rounds)
    assert halved.search.rounds < whole.rounds


def test_a_study_takes_the_time_of_all_its_trials() -> None:
    space = {"local.lr": {"kind": "float", "low": 0.01, "high": 0.1}}
    study = {"kind": "study", "metric": "train_loss", "trials": 3, "space": space}
    one, all_trials = _timed({}, SEEN), _timed({"search": study}, SEEN)
    assert one.seconds_low is not None
    assert all_trials.seconds_low == pytest.approx(3 * one.seconds_low)
