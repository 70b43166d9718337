"""Measures of users' own classes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
from pydantic import ValidationError

from fedcore.errors import SpecificationError
from fedcore.measures.base import Evaluated, MeasureSpec
from fedcore.simulation.local_run import run
from fedcore.simulation.report import RoundReport
from fedcore.spec import ExperimentSpec


class UpdateNorm(MeasureSpec):
    """(1/M) sum_i |y_i - x|^p."""

    of: ClassVar[Literal["round"]] = "round"
    needs_deltas: ClassVar[bool] = True
    better: ClassVar[Literal["min"]] = "min"

    kind: Literal["update_norm"] = "update_norm"
    p: float = 2.0
    """Exponent."""

    def compute(self, seen: Evaluated) -> float:
        assert seen.round is not None
        assert seen.round.deltas is not None
        return float((seen.round.deltas.norm(dim=1) ** self.p).mean())


class Distance(MeasureSpec):
    """|x|, the norm of the model."""

    of: ClassVar[Literal["model"]] = "model"

    kind: Literal["model_norm"] = "model_norm"

    def compute(self, seen: Evaluated) -> float:
        return float(seen.x.norm())


def rows(measures: list[Any], **fields: Any) -> list[RoundReport]:
    spec = ExperimentSpec.model_validate(
        {
            "name": "own measures",
            "problem": {
                "dataset": {"kind": "least_squares", "generate": {"clients": 4, "dim": 3, "seed": 1}}
            },
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 0.1, "steps": 2},
            "rounds": 3,
            "evaluation": {"measures": measures, "record_parameters": True},
            **fields,
        }
    )
    assert ExperimentSpec.model_validate(spec.model_dump(mode="json")) == spec
    return list(run(spec))


def test_an_own_measure_of_a_round_is_a_column_of_its_kind() -> None:
    for report in rows(["client_drift", UpdateNorm()]):
        assert report.value("update_norm") == pytest.approx(report.value("client_drift"), rel=1e-12)


def test_parameters_of_a_measure_count() -> None:
    squares = rows([UpdateNorm()], participation={"kind": "uniform", "clients_per_round": 1})
    norms = rows([UpdateNorm(p=1.0)], participation={"kind": "uniform", "clients_per_round": 1})
    for square, norm in zip(squares, norms, strict=True):
        value = norm.value("update_norm")
        assert value is not None
        assert square.value("update_norm") == pytest.approx(value**2, rel=1e-12)


def test_a_measure_of_the_model_sees_the_model_after_the_round() -> None:
    for report in rows([Distance()]):
        x: Any = report.extra["x"]
        assert report.value("model_norm") == pytest.approx(
            sum(value * value for value in x) ** 0.5, rel=1e-12
        )


class Coordinates(MeasureSpec):
    """Entries of the model, several times."""

    of: ClassVar[Literal["model"]] = "model"
    axes: ClassVar[tuple[str, ...]] = ("coordinate",)

    kind: Literal["coordinates"] = "coordinates"
    times: int = 1
    """How often."""

    def compute(self, seen: Evaluated) -> list[float]:
        return self.times * seen.x.tolist()


def test_an_own_list_is_in_the_rows_and_decides_nothing() -> None:
    for report in rows([Coordinates()]):
        assert report.extra["coordinates"] == report.extra["x"]
    with pytest.raises(ValidationError, match="coordinates is a list, which is stored and drawn, but not"):
        rows([Coordinates()], early_stopping={"metric": "coordinates", "target": 0.0, "mode": "min"})


def test_a_list_may_have_ten_thousand_numbers() -> None:
    # x has three.
    assert len(rows([Coordinates(times=3_333)])) == 3
    with pytest.raises(SpecificationError, match="coordinates has 10,002 numbers; a value may have 10,000"):
        rows([Coordinates(times=3_334)])


def test_predictions_are_for_measures_of_predictions() -> None:
    class Undeclared(MeasureSpec):
        """Labels."""

        of: ClassVar[Literal["model"]] = "model"
        kind: Literal["undeclared"] = "undeclared"

        def compute(self, seen: Evaluated) -> float:
            return float(seen.predictions().labels.sum())

    with pytest.raises(SpecificationError, match='states `of = "predictions"` in its class'):
        rows([Undeclared()])


def test_an_own_measure_of_predictions_needs_test_samples() -> None:
    class Labels(MeasureSpec):
        """Sum of the labels."""

        of: ClassVar[Literal["predictions"]] = "predictions"
        kind: Literal["label_sum"] = "label_sum"

        def compute(self, seen: Evaluated) -> float:
            return float(seen.predictions().labels.sum())

    with pytest.raises(SpecificationError, match="a least_squares problem has no label_sum; use train_loss"):
        rows([Labels()])


def test_an_own_measure_can_end_a_run_early() -> None:
    reports = rows([UpdateNorm()], early_stopping={"metric": "update_norm", "target": 1e9})
    assert len(reports) == 1


def test_a_measure_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValidationError, match="train_loss"):
        rows(["no_such_measure"])
    with pytest.raises(ValidationError, match="update_norm"):
        rows([UpdateNorm(), {"kind": "no_such_measure"}])
