"""The GPU's kernel, compiled ahead of time for GPUs that need not be here: what it takes of their
chips.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedcore.engine.accelerated.gpu.tiling import REGISTERS, SAMPLES, WARP, Tiling, tiling

triton = pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds only")

SHAPES = {"Synthetic(1,1)": (10, 61), "MNIST": (10, 785), "two classes": (2, 3), "a batch of one": (10, 61)}
BATCHES = {"a batch of one": 1}
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Of an A100 and an H100 or H200, for one program."""
ARRAYS = (
    "programs",
    "factors",
    "batches",
    "weights",
    "sizes",
    "features",
    "targets",
    "starts",
    "leans",
    "models",
)


def compiled(chip: Tiling, shape: tuple[int, int], compares: bool, number: str, capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    from fedcore.engine.accelerated.gpu.kernels import train

    constants = {
        "outputs": shape[0],
        "inputs": shape[1] - 1,
        "compares": compares,
        "leaning": compares,
        **chip._asdict(),
    }
    types = {"programs": "*i32", "batches": "*i32", "targets": f"*{number}" if compares else "*i64"}
    signature = {name: types.get(name, f"*{number}") for name in ARRAYS} | dict.fromkeys(
        constants, "constexpr"
    )
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(ARRAYS))}
    source = triton.compiler.ASTSource(train, signature, constants, aligned)
    options = chip.options({"fp32": 4, "fp64": 8}[number], SHARED_BYTES[capability])
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)


def usage(kernel: Any, folder: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    (folder / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run(
        [tool, "-res-usage", folder / "kernel.cubin"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.nightly
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    ("name", "compares", "number"),
    [
        ("Synthetic(1,1)", False, "fp32"),
        ("Synthetic(1,1)", True, "fp64"),
        ("MNIST", False, "fp32"),
        ("MNIST", True, "fp32"),
        ("two classes", False, "fp32"),
        ("a batch of one", True, "fp32"),
    ],
)
def test_a_client_stays_on_the_chip(
    name: str, compares: bool, number: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shape = SHAPES[name]
    chip = tiling(shape, BATCHES.get(name, SAMPLES))
    kernel = compiled(chip, shape, compares, number, capability)
    registers, stack = usage(kernel, tmp_path)
    itemsize = {"fp32": 4, "fp64": 8}[number]
    assert (
        kernel.metadata.shared
        <= chip.shared_bytes(itemsize, kernel.metadata.num_stages)
        <= SHARED_BYTES[capability]
    )
    assert registers * WARP * chip.tiles <= REGISTERS
    # Parameters and velocity of MNIST take 64 of a thread's 128 registers; a few of the rest are
    # spilled.
    assert stack <= (256 if name == "MNIST" else 0)
