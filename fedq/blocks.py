"""Blocks of a specification, for programs that write one in Python: `from fedq import Digits`.

Type checkers and editors read `blocks.pyi`, which `python -m fedq.blocks` writes.
"""

from pathlib import Path
from typing import Any

from fedcore.spec.kinds import block_classes


def __getattr__(name: str) -> Any:
    """Find a block by the name of its class."""
    if name == "__all__":
        return sorted(block_classes())
    try:
        return block_classes()[name]
    except KeyError:
        raise AttributeError(f"module 'fedq.blocks' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(block_classes())


def write_stub(path: Path) -> None:
    """Write the names of all blocks, with the modules that define them, as a type stub."""
    blocks = sorted(block_classes().values(), key=lambda block: (block.__module__, block.__name__.lower()))
    path.write_text("".join(f"from {b.__module__} import {b.__name__} as {b.__name__}\n" for b in blocks))


if __name__ == "__main__":
    write_stub(Path(__file__).with_suffix(".pyi"))
