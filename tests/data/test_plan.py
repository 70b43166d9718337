"""Mini-batch plans, and the streams they are drawn from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.plan import PADDING, cohort_batches, gradient_noise, mini_batches
from fedcore.random import generator
from fedcore.systems.work import Work, steps_of


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    epochs=st.integers(1, 4),
    round=st.integers(1, 1_000),
)
def test_every_epoch_sees_every_sample_once(samples: int, batch_size: int, epochs: int, round: int) -> None:
    batch_size = min(batch_size, samples)
    work = Work(steps_of(epochs, samples, batch_size), batch_size)
    batches = mini_batches(0, round, 3, samples, work)
    assert batches.shape == (work.steps, batch_size)
    for epoch in np.split(batches, epochs):
        seen = epoch[epoch != PADDING]
        assert sorted(seen) == list(range(samples))
        assert (epoch[:-1] != PADDING).all()


def test_more_steps_go_on_where_fewer_stopped() -> None:
    few, many = (mini_batches(0, 1, 2, 25, Work(steps, 10)) for steps in (4, 11))
    np.testing.assert_array_equal(many[:4], few)


def test_epochs_rounds_clients_and_seeds_are_shuffled_differently() -> None:
    orders = {
        tuple(mini_batches(seed, round, client, 50, Work(1, 49))[0])
        for seed in (0, 1)
        for round in (1, 2)
        for client in (0, 1)
    }
    assert len(orders) == 8


@given(
    seed=st.integers(0, 2**63 - 1),
    members=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 300), st.integers(1, 80), st.integers(1, 40)),
        min_size=1,
        max_size=6,
    ),
)
def test_machine_code_shuffles_as_numpy_does(seed: int, members: list[tuple[int, int, int, int]]) -> None:
    # A large client with them, so that there is enough for machine code.
    clients, samples, sizes, steps = zip((7, 5_000, 100, 60), *members, strict=True)
    work = [Work(count, min(size, n)) for count, size, n in zip(steps, sizes, samples, strict=True)]
    together = cohort_batches(seed, 3, np.array(clients), np.array(samples), work)
    for client, n, item, batches in zip(clients, samples, work, together, strict=True):
        alone = mini_batches(seed, 3, client, n, item)
        np.testing.assert_array_equal(batches, alone)
        assert batches.dtype == alone.dtype
        assert batches.strides[0] == 0 or item.batch_size < n


def test_steps_of_given_lengths_are_cut_from_the_same_passes_over_the_samples() -> None:
    usual, given = Work(6, 4), Work(6, 4, (4, 4, 2, 4, 4, 2))
    expected = mini_batches(1, 2, 3, 10, usual)
    np.testing.assert_array_equal(mini_batches(1, 2, 3, 10, given), expected)
    (cut,) = cohort_batches(1, 2, np.array([3]), np.array([10]), [Work(3, 5, (1, 5, 5))])
    np.testing.assert_array_equal(cut[cut != PADDING], expected[expected != PADDING][:11])
    assert [row.tolist().count(PADDING) for row in cut] == [4, 0, 0]


@pytest.mark.parametrize("change", [{"seed": 2}, {"purpose": "other"}, {"round": 4}, {"client": 5}])
def test_every_part_of_the_key_names_another_stream(change: dict[str, object]) -> None:
    key = {"seed": 1, "purpose": "this", "round": 3, "client": 4}
    first = generator(**key).random(8)  # type: ignore[arg-type]
    np.testing.assert_array_equal(first, generator(**key).random(8))  # type: ignore[arg-type]
    assert not np.isclose(first, generator(**{**key, **change}).random(8)).any()  # type: ignore[arg-type]


def test_noise_has_the_deviation_it_is_asked_for() -> None:
    noise = gradient_noise(0, 1, 0, 1_000, 20, 0.3)
    assert noise.std() == pytest.approx(0.3, rel=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=0.01)
