"""Any state comes back as it was, through JSON and tensors by name."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcore.engine.codec import put_together, take_apart
from fedcore.engine.event_queue import EventQueue, Flight
from fedcore.engine.tiers import Tiers
from fedcore.simulation import checkpoint


def again(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    document = json.loads(json.dumps(take_apart(value, "state", tensors)))
    return put_together(document, tensors, torch.device("cpu"))


def alike(first: Any, second: Any) -> bool:
    """Of the same type and value, to the bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray) and first.dtype == second.dtype and np.array_equal(first, second)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(alike(first[name], second[name]) for name in first)
    if isinstance(first, tuple):
        return type(first) is type(second) and all(map(alike, first, second)) and len(first) == len(second)
    if isinstance(first, EventQueue | Tiers):
        return type(first) is type(second) and all(
            alike(getattr(first, name), getattr(second, name)) for name in type(first).__slots__
        )
    return type(first) is type(second) and repr(first) == repr(second)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(
        lambda values: torch.tensor(values, dtype=torch.float32)
    ),
    st.lists(st.integers(0, 9), max_size=3).map(lambda values: np.array(values, np.int16)),
)
STATES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(st.text(max_size=3), parts, max_size=3),
        st.dictionaries(st.integers(0, 99), parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


@given(STATES)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    assert alike(again({"state": state})["state"], state)


def test_an_event_queue_comes_back_as_it_was() -> None:
    tiers = Tiers.by_latency(np.array([3.0, 1.0, 2.0, 5.0]), 2, torch.arange(3.0), torch.ones(2))
    queue = EventQueue(
        flights=(Flight(0.1 + 0.2, 1, 2, 3, 4, 5), Flight(1e-300, 2, 3, 4, 5, 6)),
        now=1 / 3,
        dispatches=7,
        models={3: torch.arange(3.0), 4: torch.ones(3, dtype=torch.float64)},
        statistics={3: torch.zeros(2)},
        tiers=tiers,
    )
    assert alike(again(queue), queue)
    assert alike(again(EventQueue()), EventQueue())


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(AssertionError, match=r"state\.x: set is not stored"):
        take_apart({"x": {1}}, "state", {})


def test_a_tensor_that_stands_twice_in_a_state_can_be_saved() -> None:
    """A rule may share the very direction that the aggregator keeps, as FedCM beside centred clipping."""
    vector, tensors = torch.arange(3.0), dict[str, Tensor]()
    document = take_apart({"a": vector, "b": vector, "c": vector[1:]}, "state", tensors)
    found = put_together(document, checkpoint.loads(checkpoint.dumps(tensors, {}))[0], torch.device("cpu"))
    assert {name: part.tolist() for name, part in found.items()} == {
        "a": [0, 1, 2],
        "b": [0, 1, 2],
        "c": [1, 2],
    }
