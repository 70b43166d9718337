"""Uploads are checked where they can break nothing."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.data.user_datasets import load
from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.sandbox import LOADED_BYTES, UploadInfo, peak_bytes, read_in_subprocess
from tests.platform.uploads.files import LIMITS, arrays, npz, parquet, take


def _apart(data: bytes, folder: Path, limits: UploadLimits = LIMITS, **options: Any) -> UploadInfo:
    source = folder / "source"
    source.write_bytes(data)
    with source.open("r+b") as file:
        return read_in_subprocess(file, folder / "target", limits, **options)


def test_sandboxed_reading_gives_what_reading_here_gives(tmp_path: Path) -> None:
    for data in (npz(arrays()), parquet(arrays(client=None))):
        here = take(data)
        content, sizes = _apart(data, tmp_path)
        assert content == here.content
        assert sizes == (here.client_sizes and here.client_sizes._asdict())
        assert load(io.BytesIO((tmp_path / "target").read_bytes()), content).digest == here.digest


def test_faults_are_told_by_the_sandbox_as_they_are_here(tmp_path: Path) -> None:
    data = npz(arrays(label=np.ones(60, int)))
    with pytest.raises(UploadError) as here:
        take(data)
    with pytest.raises(UploadError) as there:
        _apart(data, tmp_path)
    assert (there.value.name, there.value.detail) == (here.value.name, here.value.detail)


def test_a_reader_that_ends_badly_or_never_refuses_the_upload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = tmp_path / "reader"
    for script, told in (
        ("kill -ABRT $$", "cannot be read: it is damaged, or needs more memory"),
        ("echo why >&2; exit 1", "cannot be read: it is damaged, or needs more memory"),
    ):
        reader.write_text(f"#!/bin/sh\n{script}\n")
        reader.chmod(0o755)
        with pytest.raises(UploadError, match=told):
            _apart(npz(arrays()), tmp_path, interpreter=str(reader))
    assert "why" in caplog.text
    reader.write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(UploadError, match=r"took longer than 0\.05 seconds"):
        _apart(npz(arrays()), tmp_path, interpreter=str(reader), timeout_s=0.05)


def test_a_reader_takes_no_more_memory_than_an_upload_may(tmp_path: Path) -> None:
    tight = tmp_path / "tight.py"
    tight.write_text(
        "import numpy as np\n"
        "from fedcore.platform.uploads.sandbox import bound_memory\n"
        "from fedcore.platform.uploads.limits import UploadLimits\n"
        "bound_memory(UploadLimits(1 << 20, 1, 1))\n"
        "try:\n"
        "    np.zeros(5 << 30, np.uint8)\n"
        "except MemoryError:\n"
        "    raise SystemExit(7)\n"
    )
    done = subprocess.run([sys.executable, str(tight)], check=False)
    assert done.returncode == 7


WEIGH = """
import resource, subprocess, sys
for path in sys.argv[1:-1]:
    with open(path, "rb") as source:
        arguments = [sys.argv[-1], str(1 << 30), "10000000", "10000"]
        command = [sys.executable, "-m", "fedcore.platform.uploads", *arguments]
        subprocess.run(command, stdin=source, check=True)
    print("", 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
BUFFERS_BYTES = 24 << 20
"""Buffers of a fixed size, in which an upload of any size is checked a piece at a time."""


def _wide_bytes(samples: int) -> dict[str, Any]:
    return {"features": np.ones((samples, 1_000), np.int8), "label": np.arange(samples) % 2}


def _many_samples(samples: int) -> dict[str, Any]:
    small = {"label": np.arange(samples) % 2, "client": np.arange(samples) % 200, "test": np.zeros(samples)}
    kinds = {"label": np.uint8, "client": np.uint8, "test": np.bool_}
    return {"features": np.ones((samples, 1), np.int8)} | {
        name: array.astype(kinds[name]) for name, array in small.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "samples"),
    [(_wide_bytes, 50_000), pytest.param(_many_samples, 2_000_000, marks=pytest.mark.nightly)],
)
def test_reading_takes_no_more_memory_than_is_said(
    made: Callable[[int], dict[str, Any]], samples: int, tmp_path: Path
) -> None:
    small, large = tmp_path / "small.npz", tmp_path / "large.npz"
    np.savez(small, **made(2))
    np.savez(large, **(held := made(samples)))
    command = [sys.executable, "-c", WEIGH, str(small), str(large), str(tmp_path / "kept")]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout
    before, peak = (int(line.rpartition(" ")[2]) for line in told.splitlines())
    limits = UploadLimits(sum(array.nbytes for array in held.values()), samples, 10_000)
    assert before < LOADED_BYTES
    assert peak - before < peak_bytes(limits) - LOADED_BYTES + BUFFERS_BYTES
