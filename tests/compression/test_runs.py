"""Whole runs with every compressor, on both links."""

from functools import partial

import numpy as np
import pytest
import torch

from fedcore import ExperimentSpec, Simulation, run
from fedcore.testing import runs
from tests.builders.specifications import COMPRESSORS, QUADRATIC, SYNTHETIC, Document, specification

every_compressor = pytest.mark.parametrize(
    ("kind", "feedback"), [(kind, feedback) for kind in COMPRESSORS for feedback in (False, True)]
)


def both_ways(kind: str, *, feedback: bool) -> Document:
    block = {"kind": kind, **COMPRESSORS[kind], "error_feedback": feedback}
    return {"compression": {"uplink": block, "downlink": block}}


def finished(spec: ExperimentSpec, seed: int = 0) -> Simulation:
    simulation = Simulation(spec, seed)
    while not simulation.finished:
        simulation.advance()
    return simulation


# One link at a time, each form of feedback is in tests/testing/test_combinations.py.
@pytest.mark.nightly
@every_compressor
def test_the_engines_agree(kind: str, feedback: bool) -> None:
    runs.engines_agree(partial(specification, SYNTHETIC, **both_ways(kind, feedback=feedback)), seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["float32", "float64"])
@every_compressor
def test_a_run_resumed_at_any_round_ends_bit_identical(kind: str, feedback: bool, precision: str) -> None:
    changes = both_ways(kind, feedback=feedback)
    runs.resumes_at_every_round(
        partial(specification, SYNTHETIC, execution={"precision": precision}, **changes)
    )


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        pytest.param(kind, link, marks=() if number % 2 == way else pytest.mark.nightly)
        for number, kind in enumerate(COMPRESSORS)
        for way, link in enumerate(["uplink", "downlink"])
    ],
)
def test_error_feedback_leads_one_client_to_the_optimum(kind: str, link: str) -> None:
    """Gradient descent on (1/2) y'Hy - e'y, compressed: the residual is sent sooner or later, so
    the fixed point is H^-1 e.
    """
    client = QUADRATIC["problem"]["dataset"]["clients"][0]
    document: Document = {
        "name": "one client",
        "problem": {"dataset": {"kind": "quadratic", "clients": [client], "x0": [1.0, -2.0, 0.5]}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.3, "steps": 1},
        "compression": {link: {"kind": kind, **COMPRESSORS[kind], "error_feedback": True}},
        "rounds": 500,
        "evaluation": {"every": 500, "record_parameters": True},
    }
    *_, last = run(specification(document))
    np.testing.assert_allclose(last.extra["x"], np.linalg.solve(client["H"], client["e"]), atol=1e-8)


@every_compressor
def test_arms_that_share_a_seed_are_compressed_alike(kind: str, feedback: bool) -> None:
    """FedProx with mu = 0 is FedAvg, to the bit.

    A message is drawn for by seed, link, round and client alone.
    """
    changes = both_ways(kind, feedback=feedback)
    proximal = finished(
        specification(SYNTHETIC, algorithm={"kind": "fedprox", "mu": 0.0}, **changes), seed=2
    ).model()
    plain = finished(specification(SYNTHETIC, **changes), seed=2).model()
    torch.testing.assert_close(proximal, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "message"), [("top_k", 8 + 4), ("rand_k", 8), ("qsgd", 8 + 2), ("sign", 8 + 1)]
)
def test_a_run_counts_the_bytes_of_every_message(kind: str, message: int) -> None:
    """Three numbers of eight bytes: k = 1, s = 5 in four bits an entry, signs in one.

    Four clients, all in all eight rounds.
    """
    reports = list(run(specification(QUADRATIC, **both_ways(kind, feedback=True))))
    assert [report.bytes_up for report in reports] == [4 * message] * 8
    assert [report.bytes_down for report in reports] == [4 * 24, *[4 * message] * 7]


@pytest.mark.parametrize("kind", ["top_k", "rand_k"])
@pytest.mark.parametrize("feedback", [False, True])
def test_sending_every_entry_is_no_compression(kind: str, feedback: bool) -> None:
    whole = {"kind": kind, "delta": 1, "error_feedback": feedback}
    compressed = finished(specification(SYNTHETIC, compression={"uplink": whole, "downlink": whole})).model()
    torch.testing.assert_close(compressed, finished(specification(SYNTHETIC)).model(), rtol=0, atol=1e-13)
