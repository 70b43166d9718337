"""Memory, parameters and gradients of a plan, and its sums over arms."""

from pathlib import Path

import pytest

from fedcore.simulation.simulation import Simulation
from fedq.planning.estimates import memory_needed, plan
from fedq.schemas import ArmPlan
from tests.builders.specifications import SYNTHETIC, Document, merged, specification
from tests.fedq.planning.test_draws import DIGITS


def _foretold(document: Document, changes: Document) -> ArmPlan:
    (arm,) = plan(specification(document, **changes)).arms
    return arm


def test_the_parameters_are_those_of_the_model() -> None:
    simulation = Simulation(specification(DIGITS), seed=0)
    assert _foretold(DIGITS, {}).parameters == sum(tensor.numel() for tensor in simulation.model().values())


def test_memory_grows_with_what_clients_keep() -> None:
    dense = _foretold(SYNTHETIC, {}).memory_bytes
    assert _foretold(SYNTHETIC, {"algorithm": {"kind": "scaffold"}}).memory_bytes > dense
    assert (
        _foretold(
            SYNTHETIC, {"compression": {"uplink": {"kind": "top_k", "k": 5, "error_feedback": True}}}
        ).memory_bytes
        > dense
    )


def test_the_whole_is_the_sum_over_arms_and_seeds() -> None:
    whole = plan(specification(DIGITS, seeds=[0, 1, 2], sweep={"local.epochs": [1, 2]}))
    first, second = whole.arms
    assert (whole.runs, whole.rounds) == (6, 120)
    assert whole.local_steps == 3 * (first.local_steps + second.local_steps)
    assert whole.bytes_up == 3 * (first.bytes_up + second.bytes_up)
    assert second.local_steps == 2 * first.local_steps


WIDE: Document = {
    "problem": {"partition": {"clients": 40}, "model": {"hidden": [2_000]}},
    "local": {"epochs": 1},
    "participation": {"clients_per_round": 20},
    "rounds": 2,
    "evaluation": {"every": 1},
    "execution": {"precision": "float32"},
}
"""Models of 0.6 MB, twenty at a time."""


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"kind": "scaffold"}, "execution": {"engine": "vectorised"}},
        {"compression": {"uplink": {"kind": "top_k", "ratio": 0.01, "error_feedback": True}}},
        {"algorithm": {"kind": "fedmgda"}},
    ],
)
def test_no_run_takes_more_memory_than_was_foretold(changes: Document) -> None:
    document = merged(DIGITS, WIDE)
    (foretold,) = memory_needed(specification(document, **changes))
    Simulation(specification(DIGITS), seed=0).advance()  # what the libraries take they take once
    before = _peak_bytes(reset=True)
    simulation = Simulation(specification(document, **changes), seed=0)
    while not simulation.finished:
        simulation.advance()
    simulation.checkpoint()
    assert _peak_bytes() - before <= foretold


def test_every_arm_is_foretold_its_own_need() -> None:
    small, large = memory_needed(specification(DIGITS, sweep={"participation.clients_per_round": [1, 20]}))
    assert small < large


def _peak_bytes(*, reset: bool = False) -> int:
    """The most memory this process has had in all, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    ("algorithm", "gradients"),
    [
        ({"kind": "fedavg"}, 200),
        ({"kind": "fedsam"}, 400),
        ({"kind": "ditto"}, 400),
        ({"kind": "per_fedavg"}, 400),
        ({"kind": "per_fedavg", "hessian": "differences"}, 800),
        ({"kind": "pfedme", "inner_steps": 7}, 1400),
        # 5 clients with 72 samples each, in 5 batches, before each of 20 rounds.
        ({"kind": "mimelite"}, 200 + 500),
        ({"kind": "apfl", "adaptive": True}, 400 + 500),
    ],
    ids=str,
)
def test_gradients_beyond_one_in_a_step_are_counted(algorithm: Document, gradients: int) -> None:
    arm = _foretold(DIGITS, {"algorithm": algorithm, "local": {"epochs": None, "steps": 2}})
    assert (arm.local_steps, arm.gradients) == (200, gradients)
