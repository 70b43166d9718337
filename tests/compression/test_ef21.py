"""EF21 longhand, and what it is for: the optimum with a constant step, where plain top-k stays away."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore import run
from fedcore.errors import SpecificationError
from tests.compression.test_longhand import CLIENTS, LR, ROUNDS, STEPS, E, H, P, top_2
from tests.documents import QUADRATIC, Document, specification

NOTHING = np.random.default_rng(0)
"""Top-k draws nothing from it."""
EF21: Document = {"kind": "top_k", "k": 2, "feedback": "ef21"}


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_every_round_is_that_of_the_loop(engine: str) -> None:
    x = np.array(QUADRATIC["problem"]["dataset"]["x0"])
    g, expected = np.zeros((len(CLIENTS), 3)), []
    for _ in range(ROUNDS):
        for i, steps in enumerate(STEPS):
            y = x
            for _ in range(steps):
                y = y - LR * (H[i] @ y - E[i])
            g[i] = g[i] + top_2(y - x - g[i], NOTHING, feedback=True)
        x = x + P @ g
        expected.append(x)
    spec = specification(QUADRATIC, compression={"uplink": EF21}, execution={"engine": engine})
    got = [report.extra["x"] for report in run(spec)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def last_distance(uplink: Document) -> float:
    spec = specification(
        QUADRATIC,
        compression={"uplink": uplink},
        systems={"steps": {"kind": "constant", "value": 1}},
        local={"lr": 0.1},
        rounds=200,
    )
    *_, last = run(spec)
    distance: Any = last.extra["distance"]
    return float(distance)


def test_it_reaches_the_optimum_where_top_k_alone_does_not() -> None:
    one: Document = {"kind": "top_k", "k": 1}
    assert last_distance({**one, "feedback": "ef21"}) < 1e-4
    assert last_distance({**one, "error_feedback": False}) > 1e-3


def test_all_entries_kept_is_no_compression() -> None:
    whole = specification(QUADRATIC, compression={"uplink": {**EF21, "k": 3}})
    np.testing.assert_allclose(
        [report.extra["x"] for report in run(whole)],
        [report.extra["x"] for report in run(specification(QUADRATIC))],
        rtol=0,
        atol=1e-13,
    )


def test_it_is_for_the_uplink_and_with_error_feedback_only() -> None:
    with pytest.raises(SpecificationError, match="use it in `uplink`"):
        specification(QUADRATIC, compression={"downlink": EF21})
    with pytest.raises((SpecificationError, ValidationError), match="is a form of error feedback"):
        specification(QUADRATIC, compression={"uplink": {**EF21, "error_feedback": False}})
