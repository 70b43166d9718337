"""A run passes few files from its claim to its rows; docs/decisions/0036 has their number.

Counted are those of workers and of the simulation; engines, models and data depend on the
specification.
"""

from fedcore.platform.store import Status
from tests.builders.specifications import QUADRATIC, merged
from tests.support.call_path import CallPath
from tests.workers.deployment import Deployment
from workers.runner import Runner

SHORT = merged(QUADRATIC, {"rounds": 3, "execution": {"engine": "reference"}})


def test_a_run_passes_18_files_and_17_of_the_store(embedded: Deployment) -> None:
    with embedded.runner() as runner:
        # The first one makes what the process keeps.
        embedded.submit(SHORT, nudge=False)
        runner.work()
        id = embedded.submit(SHORT, nudge=False)
        with CallPath(Runner.work) as way:
            runner.work()
    assert embedded.run(id).status is Status.SUCCEEDED
    files = way.files("workers/", "fedcore/simulation/")
    statements = way.files("fedcore/platform/store/")
    assert {"workers/runner.py", "fedcore/simulation/checkpoint.py"} <= set(files)
    assert "fedcore/platform/store/curves.py" in statements
    assert len(files) <= 18, "\n".join(files)
    assert len(statements) <= 17, "\n".join(statements)
