"""Distributions laid out in folders, as an installer does, and interpreters that find them."""

import os
from pathlib import Path
from textwrap import dedent


def install(folder: Path, name: str, entry_points: dict[str, str], **modules: str) -> None:
    """Lay distribution `name` 1.2 with the package `ourlab` out in `folder`.

    `entry_points` are lines by group, `modules` texts by name.
    """
    package, info = folder / "ourlab", folder / f"{name.replace('-', '_')}-1.2.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    info.mkdir()
    (package / "__init__.py").touch()
    for module, text in modules.items():
        (package / f"{module}.py").write_text(dedent(text))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    groups = (f"[{group}]\n{lines}\n" for group, lines in entry_points.items())
    (info / "entry_points.txt").write_text("".join(groups))


def environment(*path: Path) -> dict[str, str]:
    """The environment of an interpreter that finds the distributions in these folders."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), str(Path(__file__).parents[2])]),
    }
