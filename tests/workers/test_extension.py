"""A run that is extended, carried out by a worker in this process: it ends in the bits of one that
was that long from the start.
"""

from fedcore.platform.store import extension
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.builders.specifications import merged
from tests.workers.deployment import EXPERIMENT, Deployment, assert_undisturbed

FIRST = 40


def test_a_run_that_is_extended_ends_in_the_bits_of_a_longer_one(embedded: Deployment) -> None:
    deployment, played = embedded, []

    class Counted(Simulation):
        def advance(self) -> RoundReport:
            played.append(self.round + 1)
            return super().advance()

    experiment = deployment.submit(merged(EXPERIMENT, {"rounds": FIRST}), nudge=False)
    with deployment.runner(create=Counted) as runner:
        runner.work()
        assert deployment.run(experiment).done == FIRST
        with deployment.database.transaction() as session:
            extension.extend(
                session, experiment, rounds=EXPERIMENT["rounds"], seeds=[], measure=lambda _: [0]
            )
        runner.work()
    assert played == list(range(1, EXPERIMENT["rounds"] + 1))
    assert_undisturbed(deployment, deployment.run(experiment))
