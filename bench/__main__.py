"""The figures of the README: `python -m bench`, or `make bench`."""

import platform
import subprocess
import sys

import torch

MEASURES = (("engine",), ("engine", "--engine", "vectorised"), ("service",))


def main() -> None:
    """Measure one after the other, each in a process of its own."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}", flush=True)
    for name, *options in MEASURES:
        subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=True)  # noqa: S603 - our own


if __name__ == "__main__":
    main()
