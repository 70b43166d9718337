"""Which FedQ this is."""

import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedcore.settings import settings

_TREE = Path(__file__).resolve().parents[2]
_PATIENCE_S = 10.0


@cache
def find_release() -> str:
    """The version that is installed. To find it out takes longer than to answer a request."""
    return version("fedq")


@cache
def find_commit() -> str | None:
    """The git commit that this code is of, with `+changes` where it is not quite that.

    None if it is unknown.

    FEDQ_COMMIT says it of an installation, git of a checkout.
    """
    return settings().commit or commit_of(_TREE)


def commit_of(tree: Path) -> str | None:
    """The commit of the checkout whose root is `tree`.

    None where it is no root of one, or there is no git.
    """
    top = _git(tree, "rev-parse", "--show-toplevel")
    if top is None or Path(top) != tree:
        return None
    found, changes = (
        _git(tree, "rev-parse", "HEAD"),
        _git(tree, "status", "--porcelain", "--untracked-files=no"),
    )
    return f"{found}+changes" if found and changes else found


def _git(tree: Path, *arguments: str) -> str | None:
    """Output of git about `tree`; None where it fails."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        ended = subprocess.run(  # noqa: S603
            [git, *arguments], cwd=tree, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
