"""Print the requirements of pyproject.toml, one per line, so that an image installs only the
packages its processes load.

python deploy/requirements.py --extra service > requirements.txt
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_OWN = re.compile(r"fedq\[(.*)\]")

Extras = Mapping[str, Sequence[str]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the requirements of the project in this folder, with those of some extras.

    A name that is none of them is an error.
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
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: Extras = project["optional-dependencies"]
    unknown = set(wanted) - extras.keys()
    if unknown:
        parser.error(
            f"pyproject.toml has no extra {', '.join(sorted(unknown))}; there are {', '.join(sorted(extras))}"
        )
    asked = [
        *project["dependencies"],
        *(requirement for name in wanted for requirement in requirements(extras, name)),
    ]
    sys.stdout.writelines(f"{requirement}\n" for requirement in dict.fromkeys(asked))


def requirements(extras: Extras, name: str) -> Iterator[str]:
    """Those of an extra, and of the extras that it names."""
    for requirement in extras[name]:
        own = _OWN.fullmatch(requirement)
        if own is None:
            yield requirement
        else:
            for other in own[1].split(","):
                yield from requirements(extras, other)


if __name__ == "__main__":
    main()
