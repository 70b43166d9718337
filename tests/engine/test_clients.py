"""The client table: zero until written, stored only for those who took part."""

import numpy as np
import torch

from fedcore.engine.clients import ClientTable

LIKE = torch.zeros(3, dtype=torch.float64)


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None].expand(-1, 3).clone()


def test_a_client_never_written_is_zero_and_a_written_one_keeps_its_row() -> None:
    table = ClientTable({"c": LIKE}, 10)
    table.scatter(np.array([2, 7]), {"c": rows(2, 7)})
    table.scatter(np.array([7, 1]), {"c": rows(70, 1)})
    assert torch.equal(table.gather(np.array([0, 1, 2, 7]))["c"], rows(0, 1, 2, 70))


def test_a_client_never_written_is_where_its_vectors_start() -> None:
    table = ClientTable({"c": LIKE, "z": LIKE + 5}, 4)
    assert torch.equal(table.gather(np.array([1, 2]))["z"], rows(5, 5))
    table.scatter(np.array([2]), {"c": rows(2), "z": rows(7)})
    assert torch.equal(table.gather(np.array([1, 2]))["z"], rows(5, 7))


def test_what_a_client_never_wrote_costs_nothing() -> None:
    table = ClientTable({"c": LIKE}, 1_000_000)
    table.scatter(np.array([999_999]), {"c": rows(1)})
    assert table.state()["rows.c"].shape == (1, 3)


def test_a_row_that_is_not_finite_stays_with_its_client() -> None:
    table = ClientTable({"c": LIKE}, 4)
    table.scatter(np.array([0]), {"c": rows(float("nan"))})
    assert torch.equal(table.gather(np.array([1]))["c"], rows(0))


def test_state_restores_the_table() -> None:
    table, copy = ClientTable({"c": LIKE, "d": LIKE}, 10), ClientTable({"c": LIKE, "d": LIKE}, 10)
    table.scatter(np.array([5, 3]), {"c": rows(5, 3), "d": rows(50, 30)})
    copy.load(table.state())
    copy.scatter(np.array([4]), {"c": rows(4), "d": rows(40)})
    assert torch.equal(copy.gather(np.array([3, 4, 5]))["d"], rows(30, 40, 50))
