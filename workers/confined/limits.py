"""Folders of a computing process, its resource limits, and the ties to its parent; set by the
computing side on itself, before any code of a bundle is loaded.
"""

import ctypes
import os
import resource
import struct
from pathlib import Path

BUNDLE, UPLOADS = "bundle", "uploads"
"""Folders that a session is given: the bundle's files, and uploaded data sets by digest."""
ENDED = struct.Struct("!i")
"""Sent after each session: the exit code of its process, or minus the number of a signal."""
MAX_PROCESSES = 64
"""Maximum number of processes of one bundle at the same time."""
MAX_OPEN_FILES = 512
SCRATCH_BYTES = 1 << 30
"""Size of the scratch folder under bubblewrap, and of any one file."""
MAX_CPU_S = 24 * 3_600
"""Processor time of a process."""
_PR_SET_CHILD_SUBREAPER = 36
_STATUS = Path("/proc/self/status")


def inherit_orphans() -> None:
    """Become the parent of the orphans of children, so that they can be found."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_resources(memory_bytes: int | None) -> None:
    """Limit this process and its children, irrevocably; None: no limit of memory."""
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: MAX_CPU_S,
        resource.RLIMIT_FSIZE: SCRATCH_BYTES,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    }
    if memory_bytes is not None:
        bounds[resource.RLIMIT_AS] = _address_bytes() + memory_bytes
    for limit, value in bounds.items():
        _, hard = resource.getrlimit(limit)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (least, least))


def discard_output() -> None:
    """Connect standard input, output and error with nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _address_bytes() -> int:
    """Addresses in use by this process, most of them of libraries."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines["VmSize"].split()[0]) << 10
