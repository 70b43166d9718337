import pytest
import torch

from fedcore import Simulation
from fedcore.engine.accelerated.gpu.tiling import Tiling, fits, has_triton, power, tiling
from tests.documents import SYNTHETIC, specification


@pytest.mark.parametrize(
    ("shape", "batch", "expected"),
    [
        ((10, 61), 10, Tiling(samples=16, classes=16, tiles=4, width=16)),
        ((10, 785), 10, Tiling(samples=16, classes=16, tiles=16, width=64)),
        ((2, 3), 1, Tiling(samples=8, classes=2, tiles=1, width=8)),
        ((62, 65), 500, Tiling(samples=16, classes=64, tiles=8, width=16)),
    ],
)
def test_a_model_is_cut_into_powers_of_two(shape: tuple[int, int], batch: int, expected: Tiling) -> None:
    assert tiling(shape, batch) == expected
    assert expected.tiles * expected.width >= shape[1]


def test_loads_run_ahead_where_shared_memory_allows() -> None:
    chip = tiling((10, 785), 10)
    assert chip.options(4, shared_bytes=227 << 10)["num_stages"] == 2
    assert chip.options(4, shared_bytes=163 << 10)["num_stages"] == 1


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (2, 2), (3, 4), (784, 1024)])
def test_powers(number: int, expected: int) -> None:
    assert power(number) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_fits() -> None:
    data = Simulation(specification(SYNTHETIC), seed=0)._problem.dense
    assert data is not None
    assert not fits(data)
    assert not has_triton()
