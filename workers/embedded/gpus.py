"""GPUs of this machine, and how the workers of the embedded stack share them.

Without PyTorch, which the supervisor never loads.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable of CUDA: the devices that a process may use."""
LIST_S = 30.0
_ENTRY = re.compile(r"^(?:GPU \d+|\s+MIG ).*\(UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


def devices(environment: Mapping[str, str], listing: str) -> list[str]:
    """Names of the GPUs for `CUDA_VISIBLE_DEVICES`: the names that the variable has already, or
    else names from the `listing` of `nvidia-smi -L`.

    A GPU that is divided (MIG) counts as its parts.
    """
    if VISIBLE in environment:
        names = [name.strip() for name in environment[VISIBLE].split(",")]
        return [name for name in names if name and name != "-1"]
    found: list[str] = []
    for name in _ENTRY.findall(listing):
        if name.startswith("MIG") and found and found[-1].startswith("GPU"):
            found.pop()
        found.append(name)
    return found


def listing() -> str:
    """Return the output of `nvidia-smi -L`; empty where there is no GPU that PyTorch could use."""
    try:
        if version("torch").endswith("+cpu"):
            return ""
    except PackageNotFoundError:
        return ""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        command = [program, "-L"]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIST_S, check=True).stdout  # noqa: S603 - the driver's own program
    except (OSError, subprocess.SubprocessError):
        return ""


def assignment(names: list[str], workers: int | None, cores: int) -> list[str | None]:
    """The GPU of each worker, None: any or none.

    By default a worker on each GPU, or one per core where there is none.
    """
    if not names:
        return [None] * (workers or cores)
    return [names[number % len(names)] for number in range(workers or len(names))]
