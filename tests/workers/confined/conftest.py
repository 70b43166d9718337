"""Sandboxes of bundles that a test writes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedcore import bundles
from fedcore.settings import Settings
from workers.confined.confinement import Confinement, bubblewrap
from workers.confined.limits import BUNDLE
from workers.confined.sandbox import Sandbox

MINE = """
from typing import Literal

from fedcore.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    "FedAvg by another name."

    kind: Literal["mine"]
"""
"""A bundle's module with an algorithm `mine`."""

BUBBLEWRAP = pytest.mark.skipif(bubblewrap() is None, reason="bwrap is absent or may not create namespaces")
EACH_CONFINEMENT = (
    pytest.param("bubblewrap", marks=BUBBLEWRAP),
    pytest.param("limits", marks=pytest.mark.nightly),
)
Open = Callable[..., Sandbox]


def packed(folder: Path, source: str = MINE) -> bytes:
    """The bundle of one module."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(source)
    return bundles.pack(folder)


@pytest.fixture(params=EACH_CONFINEMENT)
def confinement(request: pytest.FixtureRequest) -> Confinement:
    found: Confinement = request.param
    return found


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Gives the sandbox of a module's source under `confinement`, with other settings by name.

    Starting one takes seconds: those with the same settings are one, whose module is replaced.
    """
    held: dict[str, Sandbox] = {}

    def start(confinement: Confinement, source: str = MINE, **settings: Any) -> Sandbox:
        configured = Settings(_env_file=None, code_confinement=confinement, **settings)
        sandbox = held.get(repr(configured))
        if sandbox is None or not sandbox.alive:
            archive = packed(tmp_path_factory.mktemp("lab") / "mylab")
            sandbox = held[repr(configured)] = stack.enter_context(Sandbox(archive, configured))
        module = sandbox.uploads.parent / BUNDLE / "mine.py"
        module.unlink()
        module.write_text(source)
        return sandbox

    with ExitStack() as stack:
        yield start
