"""Create an environment for each of the other simulators, from the pinned requirements in
bench/peers/requirements.

PyTorch is large, so the environments use this environment's, by a path file; everything else is
their own. With --own-torch each has its own, of the same version. Requirements are complete and
pinned, and are installed without dependency resolution: that lets a simulator run on newer releases
of its dependencies than it names.

    python -m bench environments [--contenders flower,fedlab] [--own-torch] [--home .bench]
"""

import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bench.compare import PEERS
from bench.options import HOME, among, command
from bench.race import INSTALLED

REQUIREMENTS = Path(__file__).parent / "peers" / "requirements"
WITHOUT_TORCH = ("fedjax",)


def main(arguments: Sequence[str]) -> None:
    """Create those that are missing, or whose requirements have changed."""
    parser = command("environments", __doc__)
    parser.add_argument("--contenders", type=among(PEERS), default=list(PEERS), help="flower,fedlab,...")
    parser.add_argument(
        "--own-torch", action="store_true", help="install PyTorch into each instead of sharing this one's"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="where environments lie")
    options = parser.parse_args(arguments)
    for name in options.contenders:
        make(name, options.home / "environments" / name, own_torch=options.own_torch)


def make(name: str, folder: Path, *, own_torch: bool) -> None:
    """Create one environment."""
    wanted = REQUIREMENTS / f"{name}.txt"
    done = folder / INSTALLED
    torch = None if name in WITHOUT_TORCH else own_torch
    made_from = f"{wanted.read_text()}{torch}"
    if done.exists() and done.read_text() == made_from:
        return
    print(f"{folder}: installing", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    _pip(folder, "--no-deps", "--requirement", str(wanted))
    if torch is True:
        _pip(folder, *(f"{package}=={version(package)}" for package in ("torch", "torchvision")))
    elif torch is False:
        _share_torch(folder)
    done.write_text(made_from)


def _pip(folder: Path, *arguments: str) -> None:
    command = (
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
    )
    subprocess.run(command, check=True)  # noqa: S603 - our own


def _share_torch(folder: Path) -> None:
    """Let the environment find the packages it lacks where this process has PyTorch."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "shared.pth").write_text(f"{Path(found.origin).parent.parent}\n")
