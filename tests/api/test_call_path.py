"""A submission passes few files; docs/decisions/0036 has their number.

Counted are those below the endpoint, in the service and its store. Not counted is what every request
passes before its endpoint (middleware, authentication), and the library: components, estimates.
"""

from pathlib import Path

from api.app import create_app
from api.experiments.routes import submit_experiment
from fedcore.settings import Settings
from tests.builders.specifications import TINY
from tests.support.access import key_for
from tests.support.asgi import calling
from tests.support.call_path import CallPath


def test_a_submission_passes_13_files(sqlite_url: str, tmp_path: Path) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url=sqlite_url)
    with CallPath(submit_experiment) as way, calling(create_app(settings), key_for(sqlite_url)) as client:
        # The first one makes what the process keeps.
        for _ in range(2):
            way.passed.clear()
            assert client.post("/v1/experiments", json=TINY).status_code == 201
    files = way.files("api/", "fedcore/platform/store/")
    assert {"api/experiments/routes.py", "fedcore/platform/store/experiments.py"} <= set(files)
    assert len(files) <= 13, "\n".join(files)
