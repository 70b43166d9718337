"""`GET .../theory`: the closed form of each arm, laid beside what came out."""

import httpx
import pytest

from fedcore.platform.storage import open_storage
from fedcore.platform.store import Database
from fedcore.settings import Settings
from fedq.figures.drawing import THEORY
from tests.builders.experiments import submit_over_http
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY


def test_the_law_of_each_arm_is_what_its_runs_show(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    sweep = {"algorithm.kind": ["fedavg", "fednova", "scaffold"]}
    made = submit_over_http(http, {**TINY, "sweep": sweep})
    carry_out(rows, open_storage(settings.storage), 3)
    place = f"/v1/experiments/{made['id']}"
    theory, results = http.get(f"{place}/theory").json(), http.get(f"{place}/results").json()
    assert [arm["law"] is None for arm in theory["arms"]] == [False, False, True]
    for told, shown in zip(theory["arms"][:2], results["arms"], strict=False):
        assert (told["index"], told["name"], told["reason"]) == (shown["index"], shown["name"], None)
        for metric, values in told["law"]["curves"].items():
            if metric in shown["curves"]:
                assert shown["curves"][metric]["mean"] == pytest.approx(values, rel=1e-9)
    assert "no closed form is available for scaffold" in theory["arms"][2]["reason"]


def test_a_curve_that_runs_away_is_null_from_there_on(http: httpx.Client) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 5_000, "local": {"lr": 50.0, "steps": 2}})
    (arm,) = http.get(f"/v1/experiments/{made['id']}/theory", params={"points": 10}).json()["arms"]
    assert arm["law"]["curves"]["suboptimality"][-1] is None
    assert arm["law"]["curves"]["suboptimality"][0] > 0


def test_the_figure_has_a_thin_line_for_each_law(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    made = submit_over_http(http, {**TINY, "sweep": {"algorithm.kind": ["fedavg", "fednova", "scaffold"]}})
    carry_out(rows, open_storage(settings.storage), 3)
    place = f"/v1/experiments/{made['id']}/figure.svg"
    plain, over = (
        http.get(place, params={"metric": "distance", **more}).text for more in ({}, {"theory": True})
    )
    assert (plain.count(f"stroke: {THEORY}"), over.count(f"stroke: {THEORY}")) == (0, 2)
    assert over.count("stroke: #0072b2") == plain.count("stroke: #0072b2")
