"""An Optuna study in a SQLite file: the trials of a study with their settings and values, which
`optuna.load_study` and optuna-dashboard open.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import fmean

import optuna
from optuna.trial import TrialState

from fedcore.platform.status import ENDED, Status
from fedcore.simulation.report import StopReason
from fedcore.simulation.study import convert_directions, convert_ranges
from fedcore.spec.search import Study
from fedq import schemas
from fedq.client.errors import ExportError


class OptunaTrials:
    """Trials in `study.db`; see Sink.

    The values of a trial are means over its seeds; means of its rounds are its intermediate values,
    which Optuna has for one metric only. A trial with a failed or diverged run, or without a finite
    value, has failed; one that the study's pruner stopped was pruned; one that has not ended is
    left out.
    """

    def __init__(self, experiment: schemas.Experiment, folder: Path, _tracking_uri: str | None) -> None:
        """Raise ExportError if the experiment has no study."""
        search = experiment.specification.get("search") or {}
        if search.get("kind") != "study":
            raise ExportError(
                f"experiment {experiment.id} has no study to export to optuna; use csv or parquet"
            )
        self._search = Study.model_validate(search)
        self._name = f"{experiment.name} ({experiment.id})"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder.resolve() / "study.db"
        self.where = f"sqlite:///{self._file}"
        self._runs: defaultdict[int, list[schemas.Run]] = defaultdict(list)
        self._curves: defaultdict[int, list[Sequence[dict[int, float]]]] = defaultdict(list)
        """Curves by trial and run, one for each metric."""

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], _model: Path | None) -> None:
        """Keep the metrics of a run by round until `close`."""
        self._runs[run.arm].append(run)
        self._curves[run.arm].append([_curve(rows, one.metric) for one in self._search.objectives])

    def close(self) -> None:
        """Write the study, in the place of an earlier export."""
        self._file.unlink(missing_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(self.where)
        study = optuna.create_study(
            storage=storage,
            study_name=self._name,
            directions=convert_directions(self._search),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([one.metric for one in self._search.objectives])
        for arm, settings in enumerate(self._search.proposed):
            if all(run.status in ENDED for run in self._runs[arm]):
                study.add_trial(self._trial(arm, settings))
        storage.remove_session()
        storage.engine.dispose()

    def _trial(self, arm: int, settings: dict[str, object]) -> optuna.trial.FrozenTrial:
        runs, curves = self._runs[arm], self._curves[arm]
        bad = any(run.status is not Status.SUCCEEDED or run.diverged_round is not None for run in runs)
        stopped = any(run.stop_reason is StopReason.RUNG for run in runs)
        values = [] if bad else self._values(runs, curves)
        state = TrialState.PRUNED if stopped else TrialState.COMPLETE
        if not values or not all(map(isfinite, values)):
            state, values = TrialState.FAIL, []
        shared: list[int] = []
        if len(self._search.objectives) == 1:
            shared = sorted(set.intersection(*(set(curve) for (curve,) in curves)))
        trial = optuna.trial.create_trial(
            state=state,
            values=values or None,
            params=settings,
            distributions=convert_ranges(self._search.space),
            user_attrs={"fedq.arm": arm, "fedq.arm_name": runs[0].arm_name},
            intermediate_values={round: fmean(curve[0][round] for curve in curves) for round in shared},
        )
        trial.datetime_start = min(
            (run.started_at for run in runs if run.started_at), default=trial.datetime_start
        )
        trial.datetime_complete = max(
            (run.finished_at for run in runs if run.finished_at), default=trial.datetime_complete
        )
        return trial

    def _values(
        self, runs: Sequence[schemas.Run], curves: Sequence[Sequence[dict[int, float]]]
    ) -> list[float]:
        """Means over the runs, by metric."""
        by_run = [
            [self._value(run, curve) for curve in metrics] for run, metrics in zip(runs, curves, strict=True)
        ]
        return [fmean(column) for column in zip(*by_run, strict=True)]

    def _value(self, run: schemas.Run, curve: dict[int, float]) -> float:
        if not curve:
            return nan
        if self._search.round == "best":
            return max(curve.values()) if self._search.maximise else min(curve.values())
        last = run.rounds_done if run.rounds_done == run.rounds_total else max(curve)
        return curve.get(last, nan)


def _curve(rows: Sequence[schemas.RoundRow], metric: str) -> dict[int, float]:
    """Finite values of a metric by round."""
    known = {row.round: _number(getattr(row, metric, None), row.extra.get(metric)) for row in rows}
    return {round: value for round, value in known.items() if isfinite(value)}


def _number(usual: object, extra: object) -> float:
    found = extra if usual is None else usual
    return float(found) if isinstance(found, int | float) else nan
