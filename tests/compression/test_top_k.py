"""Top-k: which entries stay, how much it shrinks, what it costs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore import run
from fedcore.compression.top_k import TopK
from fedcore.core import Compressor
from fedcore.errors import SpecificationError
from tests.builders.specifications import QUADRATIC, Document, specification
from tests.compression.test_longhand import CLIENTS, LR, ROUNDS, STEPS, E, H, P, top_2


def keep(k: int) -> Compressor:
    return TopK(kind="top_k", k=k).build(100)


def test_among_equals_the_lowest_index_stays() -> None:
    message = torch.tensor([[1.0, -3.0, 3.0, 0.0, -1.0, 1.0]])
    assert keep(3).compress(message).tolist() == [[1.0, -3.0, 3.0, 0.0, 0.0, 0.0]]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.data())
def test_top_k_is_a_contraction_with_factor_one_minus_k_over_d(
    entries: list[float], data: st.DataObject
) -> None:
    """|v - C(v)|^2 <= (1 - k/D) |v|^2 (Stich et al., 2018, Definition 2.1)."""
    k = data.draw(st.integers(1, len(entries)))
    message = torch.tensor(entries, dtype=torch.float64)
    lost = (message - keep(k).compress(message)).square().sum()
    assert lost <= (1 - k / len(entries)) * message.square().sum() * (1 + 1e-12)


def test_each_client_of_a_cohort_keeps_its_own_entries() -> None:
    cohort = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([keep(4).compress(row) for row in cohort])
    assert torch.equal(keep(4).compress(cohort), alone)


@pytest.mark.parametrize(
    ("level", "kept"), [({"k": 7}, 7), ({"ratio": 0.01}, 10), ({"delta": 4}, 250), ({"ratio": 1e-9}, 1)]
)
def test_levels(level: dict[str, float], kept: int) -> None:
    assert TopK.model_validate({"kind": "top_k", **level}).kept(1_000) == kept


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_top_k_keeps_the_first_of_a_stable_order_by_magnitude(
    entries: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(entries)))
    order = sorted(range(len(entries)), key=lambda index: -abs(entries[index]))
    longhand = [float(entry) if index in order[:k] else 0.0 for index, entry in enumerate(entries)]
    assert keep(k).compress(torch.tensor(entries, dtype=torch.float32)).tolist() == longhand


def test_entries_that_are_not_finite_are_kept_first() -> None:
    message = torch.tensor([[1.0, float("inf"), 2.0, float("nan")], [5.0, -2.0, float("-inf"), 1.0]])
    received = keep(2).compress(message)
    assert str(received.tolist()) == "[[0.0, inf, 0.0, nan], [5.0, 0.0, -inf, 0.0]]"


def test_a_message_costs_values_and_indices_and_never_more_than_the_dense_one() -> None:
    assert keep(10).message_bytes(1_000, 4) == 10 * (4 + 4)
    assert keep(900).message_bytes(1_000, 4) == 4_000


# EF21 longhand, and what it is for: the optimum with a constant step, where plain top-k stays away.

NOTHING = np.random.default_rng(0)
"""Top-k draws nothing from it."""
EF21: Document = {"kind": "top_k", "k": 2, "feedback": "ef21"}


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_every_round_of_ef21_is_that_of_the_loop(engine: str) -> None:
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


def test_ef21_reaches_the_optimum_where_top_k_alone_does_not() -> None:
    one: Document = {"kind": "top_k", "k": 1}
    assert last_distance({**one, "feedback": "ef21"}) < 1e-4
    assert last_distance({**one, "error_feedback": False}) > 1e-3


def test_ef21_with_all_entries_kept_is_no_compression() -> None:
    whole = specification(QUADRATIC, compression={"uplink": {**EF21, "k": 3}})
    np.testing.assert_allclose(
        [report.extra["x"] for report in run(whole)],
        [report.extra["x"] for report in run(specification(QUADRATIC))],
        rtol=0,
        atol=1e-13,
    )


def test_ef21_is_for_the_uplink_and_with_error_feedback_only() -> None:
    with pytest.raises(SpecificationError, match="use it in `uplink`"):
        specification(QUADRATIC, compression={"downlink": EF21})
    with pytest.raises((SpecificationError, ValidationError), match="is a form of error feedback"):
        specification(QUADRATIC, compression={"uplink": {**EF21, "error_feedback": False}})
