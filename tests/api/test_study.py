"""Studies as the API, its pages and the command line return them."""

import httpx
from rich.console import Console

from fedcore.platform.store import Database
from fedq.cli.experiments import search_view
from fedq.cli.views import plan as plan_view
from fedq.schemas import Plan, SearchPage
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, Document
from tests.platform.store.test_study import STUDY, drain, expected

STUDIED: Document = {**TINY, "rounds": 2, "seeds": [0, 1], "search": STUDY}


def test_a_study_tells_its_trials_in_order_with_their_settings(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, STUDIED)
    assert [arm["settings"] for arm in made["arms"][:3]] == list(expected()[:3])
    assert [arm["settings"] for arm in made["arms"][3:]] == [{}] * 5
    drain(rows)
    found = SearchPage.model_validate(http.get(f"/v1/experiments/{made['id']}/search").json())
    assert (found.kind, found.arms, found.eta, found.rungs, found.mode) == ("study", 8, None, [2], "min")
    assert sorted(one.arm for one in found.items) == list(range(8))
    ended = http.get(f"/v1/experiments/{made['id']}").json()
    assert ended["status"] == "succeeded"
    assert [arm["settings"] for arm in ended["arms"]] == list(expected())
    results = http.get(f"/v1/experiments/{made['id']}/results").json()
    assert [arm["settings"] for arm in results["arms"]] == list(expected())
    assert [arm["name"].partition(":")[0] for arm in results["arms"]] == [f"trial {at}" for at in range(8)]
    console = Console(record=True, width=120)
    console.print(search_view(found))
    text = console.export_text()
    assert "8 of 8 trials have ended" in text
    places = [text.index(f"trial {arm}:") for arm in range(8)]
    assert places == sorted(places)


def test_a_page_shows_the_trials_of_a_study(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, STUDIED)
    page = http.get(f"/experiments/{made['id']}/search").text
    assert "0 of 8 trials have ended" in page
    drain(rows)
    page = http.get(f"/experiments/{made['id']}/search").text
    assert "8 of 8 trials have ended" in page
    assert page.index("trial 0: lr=") < page.index("trial 7: lr=")


def test_the_plan_of_a_study_counts_its_trials(http: httpx.Client) -> None:
    answer = http.post("/v1/experiments?dry_run=true", json=STUDIED)
    found = Plan.model_validate(answer.json())
    assert (found.runs, found.rounds) == (16, 32)
    console = Console(record=True, width=120)
    console.print(plan_view(found))
    assert "study: 8 trials of at most 2 rounds, 3 at a time" in console.export_text()


def test_a_finished_study_is_submitted_again_with_its_trials(http: httpx.Client, rows: Database) -> None:
    """Its stored specification names them, so that a repetition has the same whatever is installed."""
    made = submit_over_http(http, STUDIED)
    drain(rows)
    stored = http.get(f"/v1/experiments/{made['id']}").json()["specification"]
    again = submit_over_http(http, stored)
    assert [arm["settings"] for arm in again["arms"]] == list(expected())


def test_the_form_begins_with_a_study_as_it_was_written(http: httpx.Client) -> None:
    made = submit_over_http(http, STUDIED)
    page = http.get(f"/submit?from={made['id']}").text
    assert "local.lr" in page
    assert "high: 1.0" in page
    assert "proposed" not in page


def test_a_study_of_several_metrics_tells_its_pareto_front(http: httpx.Client, rows: Database) -> None:
    """Longhand from the values that are told: what no other trial is better than in both."""
    further = [{"metric": "bytes_up", "mode": "max"}]
    changes = {"sampler": "random", "further_metrics": further}
    made = submit_over_http(http, STUDIED | {"search": STUDY | changes})
    drain(rows)
    found = SearchPage.model_validate(http.get(f"/v1/experiments/{made['id']}/search").json())
    assert [(one.metric, one.mode) for one in found.further_metrics] == [("bytes_up", "max")]
    points = {one.arm: (one.value or 0.0, -(one.further_values[0] or 0.0)) for one in found.items}
    front = [
        arm
        for arm, (value, sent) in sorted(points.items())
        if not any(
            other[0] <= value and other[1] <= sent and other != (value, sent) for other in points.values()
        )
    ]
    assert found.pareto_front == front
    assert 1 < len(front) < 8
    console = Console(record=True, width=160)
    console.print(search_view(found))
    assert console.export_text().count("yes") == len(front)
    page = http.get(f"/experiments/{made['id']}/search").text
    assert page.count("on it") == len(front)
    assert "bytes_up" in page


def test_a_study_with_a_pruner_tells_where_trials_were_stopped(http: httpx.Client, rows: Database) -> None:
    pruner = {"kind": "hyperband", "min_rounds": 1, "eta": 2}
    search = STUDY | {"sampler": "random", "trials": 4, "pruner": pruner}
    planned = http.post("/v1/experiments?dry_run=true", json=STUDIED | {"search": search})
    plan = Plan.model_validate(planned.json())
    assert plan.search is not None
    assert [(stage.until, stage.arms) for stage in plan.search.stretches] == [(1, 4), (2, 3)]
    made = submit_over_http(http, STUDIED | {"search": search})
    drain(rows)
    found = SearchPage.model_validate(http.get(f"/v1/experiments/{made['id']}/search").json())
    assert (found.pruner, found.rungs) == ("hyperband", [1, 2])
    assert sorted(one.round for one in found.ended_trials()) == [1, 2, 2, 2]
    page = http.get(f"/experiments/{made['id']}/search").text
    assert "4 of 4 trials have ended" in page
    assert "1 of them stopped by the pruner" in page
    console = Console(record=True, width=160)
    console.print(search_view(found))
    assert console.export_text().count("(stopped)") == 1


def test_the_best_trial_so_far_is_none_that_was_stopped(http: httpx.Client, rows: Database) -> None:
    pruner = {"kind": "hyperband", "min_rounds": 1, "eta": 2}
    search = STUDY | {"sampler": "random", "trials": 4, "pruner": pruner}
    made = submit_over_http(http, STUDIED | {"search": search})
    drain(rows)
    found = SearchPage.model_validate(http.get(f"/v1/experiments/{made['id']}/search").json())
    # The one that was stopped would be the best of all.
    items = [
        one.model_copy(update={"value": 0.5 if one.verdict == "stopped" else 4.0 - one.arm})
        for one in found.items
    ]
    console = Console(record=True, width=160)
    console.print(search_view(found.model_copy(update={"items": items})))
    shown = [line.split() for line in console.export_text().splitlines() if "trial " in line and "=" in line]
    assert sum(cells[-1] == "(stopped)" for cells in shown) == 1
    assert all(cells[-2] == cells[-3] for cells in shown if cells[-1] != "(stopped)"), "each the best so far"
