"""Estimates of a dry run against the run itself."""

from pathlib import Path

import pytest

from fedcore.simulation.simulation import Simulation
from fedq.planning.estimates import memory_needed, plan
from fedq.schemas import ArmPlan
from tests.builders.specifications import COMPRESSORS, QUADRATIC, SYNTHETIC, Document, merged, specification

DIGITS: Document = {
    "name": "digits",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 20},
        "model": {"kind": "mlp", "hidden": [16]},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 2, "batch_size": 16},
    "participation": {"kind": "uniform", "clients_per_round": 5},
    "rounds": 20,
    "evaluation": {"every": 20},
}

SPARSE_LINKS: Document = {"uplink": {"kind": "top_k", "k": 1}, "downlink": {"kind": "qsgd", "levels": 1}}


def _foretold(document: Document, changes: Document) -> ArmPlan:
    (arm,) = plan(specification(document, **changes)).arms
    return arm


def _done(document: Document, changes: Document) -> dict[str, int]:
    """Steps and bytes of a run, from its reports."""
    simulation = Simulation(specification(document, **changes), seed=0)
    reports = []
    while not simulation.finished:
        reports.append(simulation.advance())
    return {
        name: sum(getattr(report, name) for report in reports)
        for name in ("local_steps", "bytes_up", "bytes_down")
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"kind": "scaffold"}},
        {"algorithm": {"kind": "feddc"}},
        {"algorithm": {"kind": "afl"}},
        {"algorithm": {"kind": "ifca", "clusters": 3}},
        {"algorithm": {"kind": "ifca"}, "compression": SPARSE_LINKS},
        *(
            {"algorithm": {"kind": "fedlin", "initial_gradient": first}, "compression": SPARSE_LINKS}
            for first in ("exact", "zero")
        ),
        {"algorithm": {"kind": "fedsvrg"}, "compression": SPARSE_LINKS},
        {
            "algorithm": {"kind": "vrlsgd"},
            "compression": merged(SPARSE_LINKS, {"downlink": {"error_feedback": True}}),
        },
        {
            "algorithm": {"kind": "vrlsgd"},
            "participation": {
                "kind": "trace",
                "rounds": [[0, 1], [1], [3], [1, 2], [0, 3], [1, 0], [0], [3]],
            },
            "systems": {"steps": {"kind": "constant", "value": 3}},
            "compression": {"downlink": {"kind": "rand_k", "k": 1, "error_feedback": True}},
        },
        *({"compression": {"uplink": {"kind": kind, **level}}} for kind, level in COMPRESSORS.items()),
        *({"compression": {"downlink": {"kind": kind, **level}}} for kind, level in COMPRESSORS.items()),
        {
            "participation": {
                "kind": "trace",
                "rounds": [[0, 1], [1], [3, 3], [1, 2], [0, 3], [1, 0], [0], [3]],
            },
            "systems": {"steps": {"kind": "constant", "value": 3}},
            "compression": {"downlink": {"kind": "rand_k", "k": 1}},
        },
        {
            "participation": {
                "kind": "trace",
                "rounds": [[0, 1], [1], [3, 3], [1, 2], [0, 3], [1, 0], [0], [3]],
            },
            "systems": {
                "steps": {"kind": "constant", "value": 3},
                "availability": {"kind": "trace", "rounds": [[0, 1], [1, 3], []]},
            },
            "compression": {"downlink": {"kind": "sign"}},
        },
        {
            "systems": {
                "steps": {"kind": "constant", "value": 3},
                "availability": {"kind": "trace", "rounds": [[]]},
            },
            "compression": {"downlink": {"kind": "sign"}},
        },
        {
            "systems": {
                "availability": {"kind": "trace", "rounds": [[0, 1, 3], []]},
                "steps": {"kind": "constant", "value": 3},
            }
        },
        {
            "participation": {"kind": "trace", "rounds": [[0, 1]] * 8},
            "systems": {"steps": {"kind": "constant", "value": 3}},
        },
    ],
)
def test_where_nothing_is_drawn_steps_and_bytes_are_exact(changes: Document) -> None:
    foretold = _foretold(QUADRATIC, changes)
    assert {name: getattr(foretold, name) for name in ("local_steps", "bytes_up", "bytes_down")} == _done(
        QUADRATIC, changes
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"systems": {"stragglers": {"fraction": 0.4, "policy": "drop"}}},
        {"systems": {"stragglers": {"fraction": 0.4, "policy": "accept_partial"}}},
        {"systems": {"epochs": {"kind": "uniform", "low": 1, "high": 3}}},
        {"systems": {"batch_size": {"kind": "uniform", "low": 10, "high": "samples"}}},
        {"systems": {"batch_size": {"kind": "uniform", "low": 60, "high": 200}}},
        {"systems": {"stragglers": {"fraction": 0.8, "policy": "accept_partial", "unit": "steps"}}},
        {"participation": {"kind": "with_replacement", "clients_per_round": 5}},
        *(
            {"compression": {"uplink": {"kind": kind, **level}, "downlink": {"kind": kind, **level}}}
            for kind, level in COMPRESSORS.items()
        ),
        {"participation": {"kind": "bernoulli", "probability": 0.5}},
        {
            "systems": {"availability": {"kind": "bernoulli", "probability": [0.9] * 10 + [0.6] * 10}},
            "participation": {"kind": "full"},
        },
        {
            "systems": {"availability": {"kind": "bernoulli", "probability": [0.9] * 10 + [0.2] * 10}},
            "participation": {"kind": "bernoulli", "probability": 0.5},
            "compression": {"uplink": {"kind": "sign"}, "downlink": {"kind": "rand_k", "ratio": 0.01}},
        },
        {"systems": {"availability": {"kind": "trace", "rounds": [[0, 1, 2], [*range(20)]]}}},
        {
            "systems": {"devices": {"latency_seconds": {"kind": "uniform", "low": 1.0, "high": 2.0}}},
            "asynchrony": {"kind": "fedat", "tiers": 2},
        },
        *(
            {"participation": scheme}
            for scheme in (
                {"kind": "power_of_choice", "clients_per_round": 5, "candidates": 12},
                {"kind": "power_of_choice", "clients_per_round": 5, "candidates": 9, "losses": "stored"},
                {"kind": "oort", "clients_per_round": 5},
                {"kind": "divfl", "clients_per_round": 5, "candidates": 8},
            )
        ),
    ],
)
def test_where_something_is_drawn_steps_and_bytes_are_close(changes: Document) -> None:
    foretold = _foretold(DIGITS, changes)
    for name, value in _done(DIGITS, changes).items():
        assert getattr(foretold, name) == pytest.approx(value, rel=0.1), name


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


def test_sizes_of_their_own_are_what_steps_are_foretold_by() -> None:
    """Clients of 4 + e^2 samples, one epoch of batches of one; the rest of the digits are
    left out.
    """
    partition = {
        "kind": "classes_per_client",
        "clients": 20,
        "classes": 2,
        "min_samples": 4,
        "mean": 2.0,
        "sigma": 0.0,
    }
    changes: Document = {"problem": {"partition": partition}, "local": {"epochs": 1, "batch_size": 1}}
    foretold, done = _foretold(DIGITS, changes), _done(DIGITS, changes)
    assert foretold.local_steps == pytest.approx(done["local_steps"], rel=0.1)


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
