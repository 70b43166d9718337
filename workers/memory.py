"""How much memory the runs of a worker may take: what its machine, its container or its GPU has,
less what the libraries take.
"""

import resource
from collections.abc import Iterable
from pathlib import Path

import torch

LIBRARIES_BYTES = 1 << 30
"""Taken by a worker before its first run, at most half of what there is; an idle one takes 0.6 to
0.8 GB, with a GPU more.
"""
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MACHINE = Path("/proc/meminfo")


def memory_limit(device: str, given: int | None = None) -> int:
    """Bytes, unless they are `given`; on a GPU no more than that has."""
    if given is not None:
        return given
    whole = host_memory_bytes()
    left = whole - min(LIBRARIES_BYTES, whole // 2)
    return (
        min(left, torch.cuda.get_device_properties(device).total_memory)
        if device.startswith("cuda")
        else left
    )


def host_memory_bytes(machine: Path = _MACHINE, limits: Iterable[Path] = _GROUP_LIMITS) -> int:
    """Memory of the machine in bytes, or less where the control group or the limits of this process
    say so.
    """
    fields = dict(line.split(":", 1) for line in machine.read_text().splitlines())
    whole = int(fields["MemTotal"].split()[0]) << 10
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min([whole, *filter(None, map(_limit, limits)), *([] if own == resource.RLIM_INFINITY else [own])])


def _limit(path: Path) -> int | None:
    """The limit that a control group has, if any."""
    try:
        said = path.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None
