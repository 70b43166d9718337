"""Bytes: every message counted, dense, sparse and missed."""

import numpy as np
import pytest

from fedcore.algorithms.scaffold import ControlVariates
from fedcore.algorithms.vrlsgd import DriftCorrection
from fedcore.compression.top_k import KeepLargest
from fedcore.core import Algorithm, Exchange, FirstExchange
from fedcore.messages import messages_of
from fedcore.systems.traffic import Traffic

DIM, WORD = 1_000, 4
SPARSE = KeepLargest(k=10)


def traffic_of(algorithm: Algorithm) -> Traffic:
    """For five clients."""
    return Traffic(messages_of(algorithm, DIM), algorithm, 5, WORD)


def test_a_dense_round_moves_the_model_both_ways() -> None:
    traffic = traffic_of(Algorithm())
    assert traffic.up(3) == 3 * DIM * WORD
    assert traffic.down(np.array([0, 1, 4]), 1).sum() == 3 * DIM * WORD


def test_vectors_that_a_rule_shares_travel_uncompressed() -> None:
    traffic = traffic_of(Algorithm(rule=ControlVariates(), uplink=SPARSE))
    assert traffic.up(1) == 10 * (4 + 4) + DIM * WORD
    assert traffic.down(np.array([0]), 1).sum() == 2 * DIM * WORD


def test_a_rule_that_gathers_gradients_sends_those_compressed_and_models_whole() -> None:
    traffic = traffic_of(
        Algorithm(exchange=Exchange(), uplink=SPARSE, downlink=KeepLargest(k=20)),
    )
    assert traffic.up(3) == 3 * DIM * WORD
    assert [traffic.down(np.array([0, 1]), round).sum() for round in (1, 2)] == [2 * DIM * WORD] * 2
    assert traffic.exchange(3, 2) == (3 * 80, 3 * 160)


@pytest.mark.parametrize(("opening", "expected"), [("exact", DIM * WORD), ("zero", 0), ("compressed", 80)])
def test_the_first_exchange_is_counted_as_it_is_made(opening: FirstExchange, expected: int) -> None:
    traffic = traffic_of(Algorithm(exchange=Exchange(opening), uplink=SPARSE, downlink=SPARSE))
    assert traffic.exchange(1, 1) == (expected, expected)


def test_a_client_that_heard_the_next_model_need_not_hear_it_again() -> None:
    traffic = traffic_of(Algorithm(rule=DriftCorrection(), downlink=SPARSE))
    assert traffic.down(np.array([0, 1]), 1).sum() == 2 * DIM * WORD
    assert traffic.finish(np.array([0, 1]), 1)[1] == 2 * 80
    assert traffic.down(np.array([0]), 2).tolist() == [0]
    assert traffic.down(np.array([1]), 3).tolist() == [80]


def test_other_rules_hear_nothing_at_the_end_of_a_round() -> None:
    assert traffic_of(Algorithm()).finish(np.array([0]), 1) == (DIM * WORD, 0)


def test_a_rule_that_gathers_nothing_makes_no_exchange() -> None:
    assert traffic_of(Algorithm(uplink=SPARSE)).exchange(3, 1) == (0, 0)


def test_a_client_that_returns_catches_up_on_what_it_missed() -> None:
    traffic = traffic_of(Algorithm(downlink=SPARSE))
    assert traffic.down(np.array([0, 1]), 1).sum() == 2 * DIM * WORD
    assert traffic.down(np.array([0]), 2).sum() == 80
    assert traffic.down(np.array([0, 1]), 4).tolist() == [2 * 80, 3 * 80]
    assert traffic.down(np.array([0]), 1_000).sum() == DIM * WORD
