"""The dependencies of pyproject.toml, one a line, for pip: an image is given only what its processes load.

python deploy/requirements.py --without torch --without torchvision > requirements.txt
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the dependencies of the project in this folder; a name that is none of them ends it with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave this one out; may be repeated")
    without = parser.parse_args(arguments).without
    dependencies = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    unknown = set(without) - {_name(dependency) for dependency in dependencies}
    if unknown:
        parser.error(f"pyproject.toml does not depend on {', '.join(sorted(unknown))}")
    sys.stdout.writelines(f"{dependency}\n" for dependency in dependencies if _name(dependency) not in without)


def _name(dependency: str) -> str:
    found = _NAME.match(dependency)
    assert found, dependency
    return found[0]


if __name__ == "__main__":
    main()
