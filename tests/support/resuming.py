"""Guarantees of checkpoints."""

from itertools import pairwise

from fedcore import ExperimentSpec, Simulation


def assert_resumable_at_every_round(spec: ExperimentSpec) -> None:
    """From the checkpoint of any round a run goes on to the very next state, to the bit, and so to
    the same end.
    """
    undisturbed = Simulation(spec, seed=1)
    states = [undisturbed.checkpoint()]
    while not undisturbed.finished:
        undisturbed.advance()
        states.append(undisturbed.checkpoint())
    for before, after in pairwise(states):
        resumed = Simulation(spec, seed=1)
        resumed.restore(before)
        resumed.advance()
        assert resumed.checkpoint() == after
