"""Confinement of bundles: bubblewrap where the machine allows it, else resource limits only, and the
command lines of both.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fedcore.errors import FedcoreError
from fedcore.packages import find_installed
from fedcore.settings import Settings
from workers.confined.limits import BUNDLE, SCRATCH_BYTES, UPLOADS

Confinement = Literal["bubblewrap", "limits"]
_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
)
_TRIAL_S = 30.0
_GIVEN, _SCRATCH = Path("/given"), Path("/tmp")  # noqa: S108 - in the sandbox, a file system of its own
_DEBIAN = ("/etc/alternatives", "/etc/ld.so.cache")
"""Paths by which the loader finds the libraries of Debian."""


class ConfinementError(FedcoreError):
    """A sandbox that cannot be started; the message gives the reason."""


@cache
def bubblewrap() -> str | None:
    """The path of `bwrap`; None where it is absent or may not create namespaces."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    trial = [path, *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        ended = subprocess.run(trial, capture_output=True, timeout=_TRIAL_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if ended.returncode == 0 else None


def chosen_confinement(settings: Settings) -> Confinement:
    """The confinement in force here; raises ConfinementError if the settings demand more."""
    wanted = settings.code_confinement
    if wanted == "auto":
        return "limits" if bubblewrap() is None else "bubblewrap"
    if wanted == "bubblewrap" and bubblewrap() is None:
        raise ConfinementError(
            "FEDQ_CODE_CONFINEMENT is bubblewrap, but bwrap is not installed here or may not create user"
            " namespaces"
        )
    return wanted


def server_command(
    confinement: Confinement, folder: Path, descriptor: int, settings: Settings, device: str
) -> tuple[list[str], dict[str, str]]:
    """The command line of a fork server, and its whole environment.

    `folder` contains what it is given (BUNDLE, UPLOADS) and, without bubblewrap, its scratch folder.
    """
    under_bubblewrap = confinement == "bubblewrap"
    given, scratch = (_GIVEN, _SCRATCH) if under_bubblewrap else (folder, folder / "scratch")
    data = settings.datasets.absolute()
    environment = {
        "FEDQ_DATA_DIR": str(data),
        "FEDQ_MODELS_ALLOWED": ",".join(settings.models_allowed),
        "HOME": str(scratch),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(dict.fromkeys(str(package.parent) for package in _outside())),
        "TMPDIR": str(scratch),
    }
    # A GPU's addresses are many times the memory behind them.
    memory = 0 if device.startswith("cuda") else settings.code_memory_bytes
    server = [sys.executable, "-P", "-m", "workers.confined.forkserver"]
    outer = [*_bubblewrap_command(folder, data, settings.home.absolute())] if under_bubblewrap else []
    return [*outer, *server, str(descriptor), str(given), str(memory)], environment


def _bubblewrap_command(folder: Path, data: Path, home: Path) -> Iterator[str]:
    path = bubblewrap()
    assert path is not None
    yield from (path, *_NAMESPACES, "--ro-bind", "/usr", "/usr")
    yield from _system_folders()
    # First, so that it hides none of the folders that follow.
    yield from ("--size", str(SCRATCH_BYTES), "--tmpfs", str(_SCRATCH))
    shown = [Path(sys.base_prefix), Path(sys.prefix), *_installed(), *_outside(), data, *map(Path, _DEBIAN)]
    for needed in shown:
        yield from ("--ro-bind-try", str(needed), str(needed))
    # Should one of them contain the state of the service, it is empty in there.
    if any(home.is_relative_to(each) for each in (*shown, Path("/usr"))):
        yield from ("--tmpfs", str(home), "--remount-ro", str(home))
    for name in (BUNDLE, UPLOADS):
        yield from ("--ro-bind", str(folder / name), str(_GIVEN / name))
    # Where workers are root, the kernel's settings would be writable.
    yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
    for gpu in sorted(Path("/dev").glob("nvidia*")):
        yield from ("--dev-bind-try", str(gpu), str(gpu))
    yield from ("--remount-ro", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/dev/shm")  # noqa: S108
    yield from ("--remount-ro", "/", "--chdir", str(_SCRATCH))


def _system_folders() -> Iterator[str]:
    """Folders that are links into /usr on most systems."""
    for name in ("/bin", "/lib", "/lib64"):
        if Path(name).is_symlink():
            yield from ("--symlink", str(Path(name).readlink()), name)
        else:
            yield from ("--ro-bind-try", name, name)


def _installed() -> list[Path]:
    """Folders of installed distributions. Other folders on the path may hold more than code."""
    return [Path(entry) for entry in sys.path if entry and any(Path(entry).glob("*.dist-info"))]


@cache
def _outside() -> tuple[Path, ...]:
    """The packages that the computing side imports and that are not installed in Python's folders:
    packages of a checkout, of editable installations and on PYTHONPATH.
    """
    modules = {
        one.entry.module.partition(".")[0] for family in find_installed().values() for one in family.values()
    }
    specs = filter(None, map(find_spec, ("fedcore", "fedq", "workers", *sorted(modules))))
    found = (place for spec in specs for place in spec.submodule_search_locations or [str(spec.origin)])
    # Their parents come before the standard library, in which nothing may be replaced.
    return tuple(path for path in map(Path, found) if not path.is_relative_to(sys.prefix))
