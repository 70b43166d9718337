"""Arms of all experiments: settings and figures as stored, filters, orders and pages."""

from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from typing import Any

import httpx
import pandas as pd
import pytest
from fastapi import FastAPI
from pyarrow import parquet
from sqlalchemy import event

from api.arms.filters import MOST_COMPARISONS, MOST_SORTED, condition_of
from api.http.problems import InvalidDocumentError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, arms
from fedcore.platform.store.arms import ArmFilter
from fedcore.settings import Settings
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS, Document, merged
from tests.support.access import key_for
from tests.support.asgi import calling

FOUR_ARMS = merged(
    TWO_ARMS,
    {
        "name": "four arms",
        "sweep": {
            "algorithm": [{"kind": "fedavg"}, {"kind": "fedprox", "mu": 0.5}],
            "local.lr": [0.1, 0.05],
        },
    },
)


@pytest.fixture
def four(http: httpx.Client, rows: Database) -> str:
    """Four arms with three seeds each; the last arm has no rounds yet."""
    made = submit_over_http(http, FOUR_ARMS)

    def history(held: Any) -> list[Any]:
        base = 1 / (1 + held.seed + 3 * (held.arm % 3))
        return [report(round, train_loss=base / round, extra={"x": [1.0, 2.0]}) for round in (1, 2, 3)]

    end_runs(rows, history, 9)
    return str(made["id"])


def read(http: httpx.Client, **params: Any) -> list[Document]:
    answer = http.get("/v1/arms", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


@pytest.mark.usefixtures("database_url")
def test_an_arm_has_its_settings_and_the_figures_of_the_results(http: httpx.Client, four: str) -> None:
    items = read(http)
    results = http.get(f"/v1/experiments/{four}/results").json()
    assert [item["arm"] for item in items] == [0, 1, 2, 3]
    for item, arm in zip(items, results["arms"], strict=True):
        for which in ("best", "final"):
            expected = arm["metrics"].get("train_loss", {}).get(which)
            assert item["metrics"]["train_loss"][which] == expected
        assert item["megabytes_sent"] == arm["megabytes_sent"]
        assert item["seconds"] == arm["seconds"]
        assert item["parameters"] == {**results["parameters"], **arm["parameters"]}
    settings = [item["parameters"] for item in items]
    assert [one["local.lr"] for one in settings] == [0.1, 0.1, 0.05, 0.05]
    assert [one.get("algorithm.mu") for one in settings] == [None, 0.5, None, 0.5]
    assert all(one["problem.dataset.kind"] == "quadratic" for one in settings)
    assert [item["status"] for item in items] == ["succeeded"] * 3 + ["queued"]


def number(value: Any, compare: Callable[[float], bool]) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and compare(value)


def flat(item: Document) -> Document:
    """An arm with its settings, and the mean of its last training loss as `final`."""
    found = item["metrics"]["train_loss"]["final"]
    return {**item, **item["parameters"], "final": found and found["mean"]}


FILTERS: dict[str, Callable[[Document], bool]] = {
    "algorithm.kind = fedprox and local.lr < 0.1": lambda arm: (
        arm["algorithm.kind"] == "fedprox" and arm["local.lr"] < 0.1
    ),
    "algorithm.mu > 0": lambda arm: number(arm.get("algorithm.mu"), lambda value: value > 0),
    "not algorithm.mu > 0": lambda arm: not number(arm.get("algorithm.mu"), lambda value: value > 0),
    "algorithm.mu != 3": lambda arm: "algorithm.mu" in arm,
    "algorithm.mu is null or local.lr = 5e-2": lambda arm: (
        "algorithm.mu" not in arm or arm["local.lr"] == 0.05
    ),
    "algorithm.kind > 0": lambda _: False,
    "local.lr = '0.1'": lambda _: False,
    "algorithm.kind in (fedavg, scaffold)": lambda arm: arm["algorithm.kind"] == "fedavg",
    "local.lr in (0.05, '0.1', true, fedavg)": lambda arm: arm["local.lr"] == 0.05,
    "not algorithm.mu in (0.5, 7)": lambda arm: arm.get("algorithm.mu") != 0.5,
    "algorithm.variance_reduction in (0, true, 'false')": lambda _: False,
    "algorithm.variance_reduction in (0, false)": lambda arm: (
        arm.get("algorithm.variance_reduction") is False
    ),
    "seeds in (3, three) and status in (queued, 3)": lambda arm: arm["status"] == "queued",
    "not train_loss.final in (1, 0.5, low)": lambda _: True,
    "arm in (true, '1', 2, 3)": lambda arm: arm["arm"] in {2, 3},
    "train_loss.final < 0.2": lambda arm: number(arm["final"], lambda value: value < 0.2),
    "train_loss.best is not null and status = succeeded": lambda arm: arm["final"] is not None,
    "name ~ 'FEDPROX' and seeds = 3": lambda arm: "fedprox" in arm["name"],
    "algorithm.variance_reduction = false": lambda arm: arm.get("algorithm.variance_reduction") is False,
    "algorithm.variance_reduction != true": lambda arm: "algorithm.variance_reduction" in arm,
    "algorithm.variance_reduction = 0": lambda _: False,
    "rounds = 3 and problem.dataset.kind = quadratic": lambda _: True,
    'name = "\') or 1=1 --"': lambda _: False,
}


@pytest.mark.usefixtures("database_url")
def test_filters_select_what_their_words_say(http: httpx.Client, four: str) -> None:
    items = read(http)
    for words, holds in FILTERS.items():
        expected = [item["arm"] for item in items if holds(flat(item))]
        assert [item["arm"] for item in read(http, filter=words)] == expected, words


ORDERS = {
    "": [0, 1, 2, 3],
    "local.lr,-algorithm.kind": [3, 2, 1, 0],
    "algorithm.mu,-local.lr": [1, 3, 0, 2],
    "train_loss.final": [2, 1, 0, 3],
    "-train_loss.final": [0, 1, 2, 3],
    "algorithm.variance_reduction,-arm": [2, 0, 3, 1],
    "-status,name": [2, 0, 1, 3],
}


@pytest.mark.usefixtures("database_url")
def test_pages_of_any_order_follow_each_other_without_gap_and_repetition(
    http: httpx.Client, four: str
) -> None:
    for sort, expected in ORDERS.items():
        found: list[int] = []
        cursor: dict[str, str] = {}
        while True:
            page = http.get("/v1/arms", params={"sort": sort, "limit": 1, **cursor}).json()
            found += [item["arm"] for item in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert found == expected, sort


def test_fields_are_what_is_asked_for(http: httpx.Client, four: str) -> None:
    (item, *_) = read(http, fields="local.lr,train_loss.final", filter="local.lr < 0.1")
    assert item["parameters"] == {"local.lr": 0.05}
    assert list(item["metrics"]) == ["train_loss"]
    assert [list(seed["metrics"]) for seed in item["seeds"]] == [["train_loss"]] * 3


@pytest.mark.parametrize(
    ("words", "position", "fix"),
    [
        ("local.lr <", 11, "expected a number, a word, or text in quotes"),
        ("local.lr < 0.1 local.mu = 2", 16, "expected `and` or `or`, not 'local.mu'"),
        ("statsu = failed", 1, "did you mean `status`?"),
        ("(local.lr = 1", 14, "expected `)`"),
        ("seeds = 3 and epsilon.best > 1", 15, "use `epsilon.final`"),
        ("local.lr in 3", 13, "expected"),
        ("local.lr == 1", 11, "use `=` to compare, not `==`"),
        ("seeds = 3 and local.lr==1", 24, "use `=` to compare, not `==`"),
    ],
)
def test_an_invalid_filter_names_the_position_and_the_fix(words: str, position: int, fix: str) -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        condition_of(words)
    (flaw,) = caught.value.flaws
    assert flaw.detail.startswith(f"position {position}: ")
    assert fix in flaw.detail


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"filter": "(" * 30}, "?filter"),
        ({"filter": f"seeds = 3{' or seeds = 3' * MOST_COMPARISONS}"}, "?filter"),
        ({"filter": f"not (arm = 1{' and not seeds in (1, 2)' * MOST_COMPARISONS})"}, "?filter"),
        ({"sort": "nothing"}, "?sort"),
        ({"sort": ",".join(["rounds"] * (MOST_SORTED + 1))}, "?sort"),
        ({"fields": "test_accuracy"}, "?fields"),
        ({"cursor": "exp_0:99999999999"}, "?cursor"),
        ({"cursor": "x"}, "?cursor"),
    ],
)
def test_queries_of_arms_that_cannot_be_answered_are_refused_by_name(
    http: httpx.Client, params: Document, pointer: str
) -> None:
    answer = http.get("/v1/arms", params=params)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_filter_and_an_order_may_have_as_many_columns_as_is_said(http: httpx.Client, four: str) -> None:
    wanted = f"arm = 9{' or seeds in (3)' * (MOST_COMPARISONS - 1)}"
    columns = (
        "rounds,-local.lr,local.steps,name,status,seeds,algorithm.kind,algorithm.mu,train_loss.final,-arm"
    )
    assert len(columns.split(",")) == MOST_SORTED
    assert len(read(http, filter=wanted, sort=columns)) == 4
    with pytest.raises(InvalidDocumentError, match=f"at most {MOST_COMPARISONS} comparisons.*`in"):
        condition_of(f"{wanted} or seeds = 3")


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("column", ["local.lr", "algorithm.kind", "train_loss.final", "name"])
def test_conditions_with_many_values_are_one_expression_of_each_type(rows: Database, column: str) -> None:
    """Whose parts the database is told of once, however long the list."""

    def told(values: Sequence[str]) -> str:
        statements: list[str] = []

        def note(*given: Any) -> None:
            statements.append(given[2])

        with rows.reading() as session:
            event.listen(session.connection(), "before_cursor_execute", note)
            wanted = condition_of(f"{column} in ({','.join(values)})")
            assert arms.page(session, ArmFilter(None, None, wanted)).items == []
        return statements[0]

    several = told(["1", "x", "true", *(str(number) for number in range(400))])
    once = told(["1", "x", "true"])
    for word in ("=", " IN ", "CASE", "json"):
        assert several.count(word) == once.count(word), word


def test_arms_of_others_are_not_seen(app: FastAPI, settings: Settings, http: httpx.Client, four: str) -> None:
    with calling(app, key_for(settings.database, "ann", Scope.READ)) as ann:
        assert read(ann) == []
        assert ann.get("/v1/arms", params={"experiment": four}).status_code == 404
    assert len(read(http, experiment=four)) == 4


@pytest.mark.usefixtures("database_url")
def test_rounds_of_arms_come_in_one_file_with_settings_of_their_types(http: httpx.Client, four: str) -> None:
    place = f"/v1/experiments/{four}/metrics"
    runs = http.get(f"/v1/experiments/{four}/runs").json()["items"]
    expected = [
        (run["id"], row["round"], row["train_loss"])
        for run in runs
        for row in http.get(f"/v1/runs/{run['id']}/metrics").json()["items"]
    ]
    answer = http.get(place, headers={"Accept": "application/vnd.apache.parquet"})
    stored = parquet.read_table(BytesIO(answer.content))
    written = pd.read_csv(StringIO(http.get(place).text), engine="pyarrow")
    assert list(written.columns) == stored.column_names
    for found in (stored.to_pandas(), written):
        assert list(found[["run_id", "round", "train_loss"]].itertuples(index=False, name=None)) == expected
        assert set(found["local.lr"]) == {0.1, 0.05}
        assert found[found["algorithm.kind"] == "fedprox"]["algorithm.mu"].unique().tolist() == [0.5]
    types = {name: str(stored.schema.field(name).type) for name in stored.column_names}
    assert (types["local.lr"], types["algorithm.kind"], types["rounds"]) == ("double", "string", "int64")
    assert types["x"].startswith("list")
    assert http.get(place, headers={"Accept": "application/json"}).status_code == 406


def test_an_extension_changes_the_settings_of_its_arms(http: httpx.Client, four: str) -> None:
    assert http.post(f"/v1/experiments/{four}/extend", json={"rounds": 5, "seeds": [0, 1, 2, 7]}).is_success
    assert {(item["parameters"]["rounds"], len(item["seeds"])) for item in read(http)} == {(5, 4)}


def test_a_trial_has_the_settings_that_are_proposed_for_it(http: httpx.Client, rows: Database) -> None:
    study = {
        "kind": "study",
        "metric": "train_loss",
        "sampler": "random",
        "trials": 3,
        "parallel": 2,
        "space": {"local.lr": {"kind": "float", "low": 0.01, "high": 0.1}},
    }
    made = submit_over_http(http, merged(TWO_ARMS, {"seeds": [0], "sweep": None, "search": study}))
    proposed = [arm["settings"] for arm in made["arms"]]
    settings = [item["parameters"] for item in read(http)]
    assert [one.get("local.lr") for one in settings] == [one.get("local.lr") for one in proposed]
    assert settings[-1].get("local.lr") is None
    end_runs(rows, lambda _: [report(round, train_loss=1.0) for round in (1, 2, 3)], 2)
    arms = http.get(f"/v1/experiments/{made['id']}").json()["arms"]
    assert [item["parameters"]["local.lr"] for item in read(http)] == [
        arm["settings"]["local.lr"] for arm in arms
    ]
