"""The client table: zero until written, stored only for those who took part, wherever there is
room.
"""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore import Simulation
from fedcore.engine.client_table import ClientTable, MemoryBudget
from tests.builders.specifications import SYNTHETIC, specification

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


def test_rows_never_written_cost_nothing() -> None:
    table = ClientTable({"c": LIKE}, 1_000_000)
    table.scatter(np.array([999_999]), {"c": rows(1)})
    assert table.state()["rows.c"].shape == (1, 3)


def test_a_row_that_is_not_finite_stays_with_its_client() -> None:
    table = ClientTable({"c": LIKE}, 4)
    table.scatter(np.array([0]), {"c": rows(float("nan"))})
    assert torch.equal(table.gather(np.array([1]))["c"], rows(0))


def test_a_client_may_keep_a_matrix() -> None:
    start = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    table, copy = ClientTable({"z": start}, 10), ClientTable({"z": start}, 10)
    assert torch.equal(table.gather(np.array([1, 2]))["z"], torch.stack([start, start]))
    table.scatter(np.array([2]), {"z": 7 * start[None]})
    copy.load(table.state())
    for each in (table, copy):
        assert torch.equal(each.gather(np.array([1, 2]))["z"], torch.stack([start, 7 * start]))


def test_state_restores_the_table() -> None:
    table, copy = ClientTable({"c": LIKE, "d": LIKE}, 10), ClientTable({"c": LIKE, "d": LIKE}, 10)
    table.scatter(np.array([5, 3]), {"c": rows(5, 3), "d": rows(50, 30)})
    copy.load(table.state())
    copy.scatter(np.array([4]), {"c": rows(4), "d": rows(40)})
    assert torch.equal(copy.gather(np.array([3, 4, 5]))["d"], rows(30, 40, 50))


def test_rows_in_a_file_are_those_in_memory(tmp_path: Path) -> None:
    tables = [
        ClientTable({"c": LIKE, "z": LIKE + 5}, 40, room)
        for room in (MemoryBudget(), MemoryBudget(200, tmp_path))
    ]
    lot = np.random.default_rng(0)
    for _ in range(6):
        cohort = np.sort(lot.choice(40, 5, replace=False))
        values = torch.from_numpy(lot.normal(size=(2, 5, 3)))
        for table in tables:
            table.scatter(cohort, {"c": values[0], "z": values[1]})
        gathered = [table.gather(np.arange(40)) for table in tables]
        assert all(torch.equal(gathered[0][name], gathered[1][name]) for name in "cz")
    copy = ClientTable({"c": LIKE, "z": LIKE + 5}, 40, MemoryBudget(0, tmp_path))
    copy.load(tables[1].state())
    assert torch.equal(copy.gather(np.arange(40))["z"], tables[0].gather(np.arange(40))["z"])


def test_a_file_of_rows_has_no_name_and_small_tables_have_none(tmp_path: Path) -> None:
    small, large = (ClientTable({"c": LIKE}, 10, MemoryBudget(size, tmp_path)) for size in (72, 71))
    held = []
    for table in (small, large):
        table.scatter(np.array([0, 1, 2]), {"c": rows(0, 1, 2)})
        held.append(Path("/proc/self/maps").read_text().count(f"{tmp_path}/"))
    assert held == [0, 1]
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_and_leaves_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ClientTable({"c": LIKE}, 10, MemoryBudget(0, tmp_path))
    table.scatter(np.array([4]), {"c": rows(4)})

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            table.scatter(np.array([5]), {"c": rows(5)})
    assert torch.equal(table.gather(np.array([4, 5]))["c"], rows(4, 0))
    table.scatter(np.array([5]), {"c": rows(5)})
    assert torch.equal(table.gather(np.array([4, 5]))["c"], rows(4, 5))


def test_a_run_ends_in_the_same_bits_wherever_its_clients_memory_lies(tmp_path: Path) -> None:
    def played(client_memory: MemoryBudget) -> tuple[bytes, torch.Tensor]:
        # Checkpoints say how an engine was chosen, which `auto` does by time.
        changes = {"algorithm": {"kind": "scaffold"}, "execution": {"engine": "compiled"}}
        simulation = Simulation(specification(SYNTHETIC, **changes), seed=0, client_memory=client_memory)
        simulation.advance()
        saved = simulation.checkpoint()
        simulation.restore(saved)
        while not simulation.finished:
            simulation.advance()
        return saved, torch.cat([parameter.flatten() for parameter in simulation.model().values()])

    in_memory, in_a_file = played(MemoryBudget()), played(MemoryBudget(0, tmp_path))
    assert in_memory[0] == in_a_file[0]
    assert torch.equal(in_memory[1], in_a_file[1])
