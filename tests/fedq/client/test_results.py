"""Results and rows as data frames."""

import sys

import numpy as np
import pytest

from fedq.client import Client, Frame, MissingPackageError
from tests.api.histories import TWO_ARMS, carry_out
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
    differences = pandas[(pandas.metric == "objective") & (pandas.figure == "final_difference")]
    assert list(differences["name"]) == ["lr=0.05"]


def test_the_rows_give_the_figures_of_the_results(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    rows = client.metrics(id).to_pandas()
    assert len(rows) == 18
    last = rows[rows["round"] == 3].groupby("arm")["objective"].mean()
    finals = [arm.metrics["objective"].final for arm in client.results(id).arms]
    np.testing.assert_allclose(last, [final.mean for final in finals if final is not None], rtol=1e-12)
    assert client.metrics(id).to_polars().shape == rows.shape


def test_results_may_be_asked_for_some_metrics_and_points_only(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    (arm, _) = client.results(id, metrics=["distance"], points=2).arms
    assert list(arm.metrics) == ["distance"]
    assert arm.curves["distance"].rounds == [1, 3]
    (arm, _) = client.results(id, metrics=["distance"], rounds=(2, 3)).arms
    assert arm.curves["distance"].rounds == [2, 3]


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
