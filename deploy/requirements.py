"""Print the requirements of the distributions `fedq` and `fedq-service`, one per line, so that an
image installs only the packages its processes load.

python deploy/requirements.py --extra service > requirements.txt
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROJECTS = {"fedq": Path("pyproject.toml"), "fedq-service": Path("deploy/service/pyproject.toml")}
_OWN = re.compile(r"(fedq|fedq-service)(?:\[(.*)\])?(?:==.*)?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the requirements of the project in this folder, with those of some of its extras.

    An unknown extra is an error.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--extra",
        action="append",
        default=[],
        metavar="NAME",
        help="with the requirements of this extra; may be repeated",
    )
    wanted = parser.parse_args(arguments).extra
    extras = _project("fedq")["optional-dependencies"]
    unknown = set(wanted) - extras.keys()
    if unknown:
        parser.error(
            f"pyproject.toml has no extra {', '.join(sorted(unknown))}; there are {', '.join(sorted(extras))}"
        )
    lines = dict.fromkeys(requirements("fedq", wanted))
    sys.stdout.writelines(f"{requirement}\n" for requirement in lines)


def requirements(name: str, extras: Sequence[str]) -> Iterator[str]:
    """Requirements of a distribution with some extras, those of our own distributions resolved."""
    project = _project(name)
    optional = (line for extra in extras for line in project["optional-dependencies"][extra])
    for requirement in (*project["dependencies"], *optional):
        own = _OWN.fullmatch(requirement)
        if own is None:
            yield requirement
        else:
            yield from requirements(own[1], own[2].split(",") if own[2] else ())


def _project(name: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(PROJECTS[name].read_text(encoding="utf-8"))["project"]
    return project


if __name__ == "__main__":
    main()
