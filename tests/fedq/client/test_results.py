"""Results and rows as data frames."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedq.client import Client, Frame, MissingPackageError
from tests.builders.runs import carry_out
from tests.builders.specifications import TWO_ARMS
from tests.support.service import Service


def test_the_summary_is_the_same_in_pandas_polars_and_the_csv_of_the_service(
    service: Service, client: Client
) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    results = client.results(id)
    pandas, polars = results.to_pandas(), results.to_polars()
    assert list(pandas.columns) == polars.columns == list(results.summary.columns)
    assert list(pandas["mean"]) == polars["mean"].to_list() == [line["mean"] for line in results.summary]
    differences = pandas[pandas.figure == "final_difference"]
    assert list(differences["metric"]) == ["suboptimality"] * 2
    assert list(differences["name"]) == ["lr=0.1", "lr=0.05"]
    assert list(differences["verdict"]) == ["too_few_seeds"] * 2


def test_the_rows_give_the_figures_of_the_results(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    rows = client.metrics(id).to_pandas()
    assert len(rows) == 18
    last = rows[rows["round"] == 3].groupby("arm")["objective"].mean()
    finals = [arm.metrics["objective"].final for arm in client.results(id).arms]
    np.testing.assert_allclose(last, [final.mean for final in finals if final is not None], rtol=1e-12)
    assert client.metrics(id).to_polars().shape == rows.shape


def test_frames_have_the_settings_as_columns_with_their_types(service: Service, client: Client) -> None:
    ids = [client.submit(TWO_ARMS).id, client.submit({**TWO_ARMS, "name": "shorter", "rounds": 2}).id]
    carry_out(service.database, service.storage, 12)
    rows = client.metrics(ids).to_pandas()
    assert dict(rows.groupby("experiment_name")["rounds"].first()) == {"two arms": 3, "shorter": 2}
    assert rows.groupby(["experiment_id", "local.lr"])["round"].max().tolist() == [3, 3, 2, 2]
    results = client.results(ids[0])
    for frame in (rows, results.to_pandas(), results.curves.to_pandas()):
        assert frame["local.lr"].dtype == float
        assert set(frame["algorithm.kind"]) == {"fedavg"}
    arms = client.arms(filter="local.lr < 0.1", sort="rounds").to_pandas()
    assert (arms["rounds"].tolist(), arms["seeds"].tolist()) == ([2, 3], [3, 3])
    final = results.arms[1].metrics["objective"].final
    chosen = client.arms(experiments=ids[:1], fields="objective.final,local.lr", sort="local.lr").to_pandas()
    assert final is not None
    assert chosen["objective.final"][0] == final.mean
    assert chosen["objective.final.high"][0] == final.high
    seeds = client.arms(experiments=ids[:1], fields="objective.final", each_seed=True).to_pandas()
    assert seeds.groupby("arm")["objective.final"].mean()[1] == pytest.approx(final.mean, rel=1e-12)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rounds_are_saved_at_once(service: Service, client: Client, tmp_path: Path, suffix: str) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    path = client.save_metrics(id, tmp_path / f"rounds.{suffix}")
    saved = pd.read_csv(path, engine="pyarrow") if suffix == "csv" else pd.read_parquet(path)
    rows = client.metrics(id).to_pandas()
    assert set(saved.columns) == set(rows.columns)
    for column in ("run_id", "round", "objective", "local.lr"):
        assert saved[column].tolist() == rows[column].tolist()
    with pytest.raises(ValueError, match=r"must end in \.csv or \.parquet"):
        client.save_metrics(id, tmp_path / "rounds.txt")


def test_results_may_be_asked_for_some_metrics_and_points_only(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    (arm, _) = client.results(id, metrics=["distance"], points=2).arms
    assert list(arm.metrics) == ["distance"]
    assert arm.curves["distance"].rounds == [1, 3]
    (arm, _) = client.results(id, metrics=["distance"], rounds=(2, 3)).arms
    assert arm.curves["distance"].rounds == [2, 3]


def test_the_leading_arms_are_confirmed_on_seeds_that_did_not_select_them(
    service: Service, client: Client
) -> None:
    swept = {"algorithm.kind": ["fedavg", "fedprox"], "local.lr": [0.1, 0.05, 0.001]}
    original = client.submit({**TWO_ARMS, "sweep": swept})
    with pytest.raises(ValueError, match="0 arms to choose"):
        client.confirm(original.id)
    carry_out(service.database, service.storage, 18)
    found = client.results(original.id)
    finals = [arm.metrics["suboptimality"].final for arm in found.arms]
    means = [final.mean for final in finals if final is not None]
    made = client.confirm(original.id, arms=3, seeds=4)
    leading = sorted(sorted(range(6), key=means.__getitem__)[:3])
    assert [arm.name for arm in made.arms] == [found.arms[place].name for place in leading]
    assert [arm.settings for arm in made.arms] == [found.arms[place].settings for place in leading]
    assert made.specification["seeds"] == [3, 4, 5, 6]
    assert original.id in made.specification["description"]
    assert made.tags == [*original.tags, "confirmation"]
    assert found.best_arms is not None
    assert "selected from 6 arms" in found.best_arms.says
    carry_out(service.database, service.storage, 12)
    confirmed = client.results(made.id).best_arms
    assert confirmed is not None
    assert confirmed.seeds == 4
    assert "selected" not in confirmed.says
    named = client.confirm(original.id, arms=[found.arms[4].name, found.arms[0].name], seeds=1)
    assert [arm.name for arm in named.arms] == [found.arms[4].name, found.arms[0].name]
    with pytest.raises(ValueError, match="no arm 'nothing' among"):
        client.confirm(original.id, arms=["nothing", found.arms[0].name])


def test_printed_results_are_the_table_of_their_arms(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    results = client.results(id)
    title, head, *rows, says = str(results).splitlines()
    assert title == "two arms: suboptimality, mean ± std over 3 seeds"
    assert head.split()[:3] == ["arm", "best", "final"]
    assert [row.split()[0] for row in rows] == ["lr=0.1", "lr=0.05"]
    assert says == "At least 4 seeds are needed to tell arms apart, not 3."
    assert repr(results) == "Results(name='two arms', arms=['lr=0.1', 'lr=0.05'])"


def test_a_report_in_markdown_has_its_figures_beside_it(
    service: Service, client: Client, tmp_path: Path
) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    text = client.save_report("@last", tmp_path / "report.md").read_text()
    shown = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert f"{id}-suboptimality.svg" in shown
    for name in shown:
        assert (tmp_path / name).read_bytes().startswith(b"<?xml")
    assert {file.name for file in tmp_path.iterdir()} == {"report.md", *shown}
    alone = client.save_report(id, tmp_path / "report.html").read_text()
    assert alone.count('<img src="data:image/svg+xml;base64,') == len(shown)


def test_arms_of_several_experiments_are_one_frame(service: Service, client: Client) -> None:
    ids = [client.submit(TWO_ARMS).id, client.submit({**TWO_ARMS, "name": "again"}).id]
    carry_out(service.database, service.storage, 12)
    found = client.compare([f"{ids[0]}:1", ids[1]], metrics=["distance"], baseline=0)
    assert [member.paired for member in found.members] == [True, True, True]
    assert set(found.to_pandas()["name"]) == {"two arms: lr=0.05", "again: lr=0.1", "again: lr=0.05"}
    assert found.curves.to_polars()["round"].to_list() == [1, 2, 3] * 3
    assert client.compare(ids[:1], rounds=(3, 9)).curves.to_polars()["round"].unique().to_list() == [3]


@pytest.mark.parametrize("kind", ["to_pandas", "to_polars"])
def test_an_experiment_without_rows_gives_empty_frames(client: Client, kind: str) -> None:
    id = client.submit(TWO_ARMS).id
    results = client.results(id)
    for frame in (results.summary, results.curves, client.metrics(id)):
        made = getattr(frame, kind)()
        assert (len(made), len(made.columns)) == (0, len(frame.columns))


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_frame_of_a_kind_that_is_not_installed_names_what_brings_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"needs {package}: pip install 'fedq\[frames\]'"):
        getattr(Frame(("round",), [{"round": 1}]), f"to_{package}")()
