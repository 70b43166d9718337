"""Build the site: `python -m deploy.site`."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.site import commands, extensions, interface, llms, offers, python, specification
from deploy.site.formulas import with_mathml

ROOT = Path(__file__).parents[2]
REFERENCE = "reference"


def main(arguments: Sequence[str] | None = None) -> None:
    """Build it; raises RuntimeError where a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("site"), metavar="FOLDER", help="where to write it (site)"
    )
    output = parser.parse_args(arguments).output
    with tempfile.TemporaryDirectory() as place:
        build(Path(place))
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(Path(place, "site"), output)
    sys.stdout.write(f"{output / 'index.html'}\n")


def build(place: Path) -> None:
    """Put the pages together in `place`, and build them to `place`/site.

    Raises RuntimeError where a link leads nowhere.
    """
    shutil.copytree(ROOT / "docs", place / "docs")
    for name, text in reference():
        path = place / "docs" / REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(place / "docs", place / "markdown")
    for path in (place / "docs").rglob("*.md"):
        path.write_text(with_mathml(path.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copy(ROOT / "mkdocs.yml", place)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(  # noqa: S603
        command, cwd=place, env=os.environ | {"NO_COLOR": "1"}, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    llms.copy_pages(place / "markdown", place / "site")
    (place / "site" / llms.NAME).write_text(llms.text(configuration(), place / "markdown"), encoding="utf-8")


def reference() -> Iterator[tuple[str, str]]:
    """Names and texts of the pages that are written from the code."""
    yield from specification.pages()
    yield interface.NAME, interface.text()
    yield commands.NAME, commands.text()
    yield from python.pages()
    yield extensions.NAME, extensions.text()
    yield offers.NAME, offers.text()


def navigation() -> list[str]:
    """The pages that the navigation names."""
    return list(llms.pages_of(configuration()["nav"]))


def configuration() -> dict[str, Any]:
    """The content of mkdocs.yml."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return read


if __name__ == "__main__":
    main()
