"""Imports of a worker's processes."""

import os
import subprocess
import sys

import pytest

LOADED = """
import sys
import workers.reconciler, workers.embedded.supervisor, workers.worker
print(*sorted({"torch", "numba", "sklearn", "fedcore.simulation.simulation"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_parent_of_a_worker_and_what_runs_beside_it_load_no_tensor_library() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run(
            [sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )
