"""Kinds of an installed package in the whole service, whose processes find it or do not."""

import csv
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedq.client import Client
from tests.extensions.distributions import environment, install
from tests.support.access import bearer, key_for
from tests.support.polling import eventually
from tests.support.processes import served
from workers.embedded.stack import API

FEDEXP = """
    from typing import ClassVar, Literal

    from fedcore.algorithms import AlgorithmSpec
    from fedcore.measures.base import Evaluated, MeasureSpec


    class FedExP(AlgorithmSpec):
        '''FedAvg under the name of another rule.'''

        source: ClassVar[str] = "Nobody et al. (2026)"
        kind: Literal["fedexp"] = "fedexp"
        strength: float = 1.0
        '''A number.'''


    class UpdateNorm(MeasureSpec):
        '''(1/M) sum_i |y_i - x|.'''

        of: ClassVar[Literal["round"]] = "round"
        needs_deltas: ClassVar[bool] = True
        better: ClassVar[Literal["min"]] = "min"
        kind: Literal["update_norm"] = "update_norm"

        def compute(self, seen: Evaluated) -> float:
            return float(seen.round.deltas.norm(dim=1).mean())
"""
METRIC, ALGORITHM, PACKAGE = "ourlab/update_norm", "ourlab/fedexp", "ourlab-fedexp 1.2"
EXPERIMENT: dict[str, Any] = {
    "name": "kinds of a package",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
    "algorithm": {"kind": "fedavg"},
    "sweep": {"algorithm": [{"kind": "fedavg"}, {"kind": ALGORITHM, "strength": 2}]},
    "local": {"lr": 0.1, "steps": 3},
    "rounds": 3,
    "seeds": [0, 1],
    "evaluation": {"measures": ["train_loss", "client_drift", METRIC]},
}


class Site:
    """An API that has the package, and workers that have it or not."""

    def __init__(self, folder: Path, settings: dict[str, str], resources: ExitStack) -> None:
        self.package = folder / "installed"
        install(
            self.package,
            "ourlab-fedexp",
            {
                "fedq.algorithms": "fedexp = ourlab.own:FedExP",
                "fedq.measures": "update_norm = ourlab.own:UpdateNorm",
            },
            own=FEDEXP,
        )
        self.folder, self._settings, self._resources = folder, settings, resources
        listener = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._start([*API, f"--fd={listener.fileno()}"], pass_fds=(listener.fileno(),))
        self._start([sys.executable, "-m", "workers.reconciler"])
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.key = key_for(settings["FEDQ_DATABASE_URL"])
        self.client = resources.enter_context(Client(self.url, self.key))

    def start_worker(self, *, with_package: bool) -> None:
        """Start a worker, and wait until it is listed."""
        before = len(self.client.workers())
        self._start([sys.executable, "-m", "workers.worker"], with_package=with_package)
        eventually(lambda: len(self.client.workers()) > before, timeout_s=60)

    def get(self, address: str) -> httpx.Response:
        """Answer to a request with the key."""
        answer = httpx.get(f"{self.url}{address}", headers=bearer(self.key), timeout=60, trust_env=False)
        return answer.raise_for_status()

    def package_digest(self) -> str:
        """Digest of the package that another interpreter finds there."""
        code = "from fedcore.packages import file_digest; print(file_digest('ourlab-fedexp'))"
        command = [sys.executable, "-c", code]
        return subprocess.check_output(command, env=environment(self.package), text=True).strip()

    def run(self, *arguments: str, **variables: str) -> str:
        """Output of `fedq` without the package."""
        done = subprocess.run(
            [sys.executable, "-m", "fedq.cli", *arguments],
            check=True,
            env=environment() | self._settings | {"FEDQ_URL": self.url, "FEDQ_API_KEY": self.key} | variables,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def _start(self, command: list[str], *, with_package: bool = True, **options: Any) -> None:
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        env = environment(*[self.package] * with_package) | self._settings
        self._resources.enter_context(served(command, log, env=env, cwd=self.folder, **options))


@contextmanager
def running_site(folder: Path, database_url: str, broker_url: str) -> Iterator[Site]:
    settings = {
        "FEDQ_HOME": str(folder),
        "FEDQ_DATABASE_URL": database_url,
        "FEDQ_BROKER_URL": broker_url,
        "FEDQ_STORAGE_URL": str(folder / "storage"),
    }
    with ExitStack() as resources:
        yield Site(folder, settings, resources)


@pytest.mark.nightly
def test_an_experiment_waits_for_a_worker_with_its_package_and_its_measures_are_shown_everywhere(
    place: Path, postgresql_url: str, valkey_url: str
) -> None:
    with running_site(place, postgresql_url, valkey_url) as site:
        client = site.client
        site.start_worker(with_package=False)
        check_kinds(site)
        assert client.dry_run(EXPERIMENT).warnings == [
            (
                f"some of the runs would wait: no worker has {PACKAGE}: install it on workers of the queue"
                " 'default'"
            )
        ]
        experiment = client.submit(EXPERIMENT)
        plain = client.submit({**EXPERIMENT, "evaluation": {}, "sweep": {}})
        client.wait(plain.id, timeout_s=60)
        assert {run.status for run in client.runs(experiment.id)} == {"queued"}
        assert {run.waits_for for run in client.runs(experiment.id)} == {
            f"no worker has {PACKAGE}: install it on workers of the queue 'default'"
        }
        assert f"no worker has {PACKAGE}" in " ".join(site.run("status", experiment.id).split())

        site.start_worker(with_package=True)
        assert client.wait(experiment.id, timeout_s=120).status == "succeeded"
        check_results(site, experiment.id)
        check_import(site, experiment.id)


def check_results(site: Site, id: str) -> None:
    """The measure is in rows, results, exports, figures and pages; the runs say where it is from."""
    client, digest = site.client, site.package_digest()
    for run in client.runs(id):
        assert run.packages == [PACKAGE]
        assert run.provenance["packages"] == {"ourlab-fedexp": {"version": "1.2", "sha256": digest}}
        assert [row.extra[METRIC] > 0 for row in client.rounds(run.id)] == [True] * 3
    results = client.results(id)
    for arm in results.arms:
        assert arm.metrics[METRIC].final is not None
        assert len(arm.curves[METRIC].mean) == 3
    assert client.results(id, metrics=[METRIC], target=f"{METRIC}:100").arms[0].metrics.keys() == {METRIC}
    assert b"<svg" in bytes(client.figure(id, metric=METRIC))
    assert METRIC in bytes(client.figure(id, "csv", metric=METRIC)).decode()
    folder = Path(client.export(id, "csv", site.folder / "csv"))
    with (folder / "rounds.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row[METRIC]) > 0 for row in rows] == [True] * 12
    for address in (
        f"/experiments/{id}",
        f"/runs/{client.runs(id)[0].id}",
        f"/v1/experiments/{id}/report.md",
    ):
        assert METRIC in site.get(address).text or PACKAGE in site.get(address).text, address


def check_kinds(site: Site) -> None:
    """The kinds are offered wherever kinds are listed."""
    catalog = site.client.catalogue()
    kinds = {block.path: {kind.kind: kind for kind in block.kinds} for block in catalog.blocks}
    found = kinds["algorithm"][ALGORITHM]
    assert (found.source, found.defaults) == ("Nobody et al. (2026)", {"server_lr": 1.0, "strength": 1.0})
    assert METRIC in catalog.measures
    assert ALGORITHM in catalog.json_schema["properties"]["algorithm"]["discriminator"]["mapping"]
    described = site.get("/openapi.json").json()["components"]["schemas"]
    mapping = described["ExperimentSpec"]["properties"]["algorithm"]["discriminator"]["mapping"]
    assert described[mapping[ALGORITHM].rpartition("/")[2]]["properties"]["strength"]["default"] == 1.0
    assert ALGORITHM in site.run("catalogue", "algorithm")
    line = {"_FEDQ_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line["_TYPER_COMPLETE_ARGS"] = "fedq submit --set algorithm.kind=our"
    assert "algorithm.kind=ourlab/fedexp" in site.run(**line)


def check_import(site: Site, id: str) -> None:
    """A results file keeps the measure, and its reproduction needs the same package."""
    file = site.client.export(id, "fedq", site.folder / "results.fedq.json.gz")
    imported = site.client.import_(file)
    assert site.client.results(imported.id).arms[1].metrics[METRIC].final is not None
    again = site.client.reproduce(imported.id)
    assert {tuple(run.packages) for run in site.client.runs(again.id)} == {(PACKAGE,)}
    site.client.wait(again.id, timeout_s=120)
    assert site.client.reproduction(again.id).outcome == "identical"
