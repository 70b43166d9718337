"""A study carried out by workers in this process: the trials and results of the library, although
the first worker ends in the middle.
"""

import pytest

from fedcore import ExperimentSpec, run
from fedcore.platform.store import Status, experiments, search
from fedcore.spec import stored_spec
from fedcore.spec.experiment import Arm
from tests.builders.specifications import merged
from tests.simulation.test_study import LOCAL, suboptimality
from tests.workers.deployment import Deployment


def test_workers_run_the_trials_that_the_library_does(embedded: Deployment) -> None:
    document = merged(LOCAL, {"execution": {"engine": "reference"}})
    experiment = embedded.submit(document, nudge=False)
    looks = iter([False] * 5 + [True])
    for stopping in (lambda: next(looks, True), lambda: False):
        with embedded.runner(stopping=stopping) as runner:
            runner.work()
    trials: list[Arm] = []
    spec = ExperimentSpec.model_validate(document)
    last = {(report.arm, report.seed): suboptimality(report) for report in run(spec, proposed=trials.append)}
    runs = embedded.runs(experiment)
    assert {one.status for one in runs} == {Status.SUCCEEDED}
    assert {one.arm: one.settings for one in runs} == {arm.index: arm.settings for arm in trials}
    for one in runs:
        rows = embedded.rows(one.id)
        assert rows[-1].extra["suboptimality"] == last[one.arm, one.seed]
    with embedded.database.reading() as session:
        values = {one.arm: one.value for one in search.arrivals(session, experiment)}
        stored = stored_spec(experiments.find(session, experiment).spec)
    for arm in trials:
        assert values[arm.index] == pytest.approx((last[arm.index, 0] + last[arm.index, 1]) / 2)
    assert [arm.settings for arm in stored.arms()] == [arm.settings for arm in trials]
