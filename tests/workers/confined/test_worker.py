"""A worker with runs of bundles: rows, checkpoints and provenance are those of any run, and errors of
a bundle are errors of its run alone.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load

from fedcore import ExperimentSpec, bundles
from fedcore.platform.access import LOCAL
from fedcore.platform.store import Status, datasets
from fedcore.platform.store import bundles as stored
from fedcore.platform.store.tables import RoundRecord
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.documents import SYNTHETIC, Document, merged
from tests.workers.confined.conftest import MINE, packed
from tests.workers.site import Site

pytestmark = pytest.mark.slow

FEDAVG = merged(
    SYNTHETIC,
    {"rounds": 6, "local": {"epochs": None, "steps": 2}, "execution": {"engine": "vectorised"}},
)
FEDAVG["algorithm"] = {"kind": "fedavg"}


def bundled(site: Site, source: str = MINE, **fields: Any) -> Document:
    """An experiment with the algorithm `mine` of a bundle that is stored."""
    archive = packed(site.folder / "mylab", source)
    digest, components = bundles.digest(archive), {"algorithms": ["mine"]}
    with site.database.transaction() as session:
        record = stored.BUNDLES.create(
            session,
            stored.BUNDLES.new_id(session),
            digest,
            files=[],
            components=components,
            size_bytes=len(archive),
            owner=LOCAL,
            key_id="",
        )
        code = {"digest": digest, "id": record.id, "components": components}
    site.storage.put(bundles.storage_key(record.id, digest), archive)
    return {**FEDAVG, "algorithm": {"kind": "mine"}, "code": code, **fields}


def measures(rows: Iterator[RoundRecord | RoundReport]) -> list[tuple[Any, ...]]:
    return [
        (row.round, row.train_loss, row.test_accuracy, row.local_steps, row.bytes_up, row.bytes_down)
        for row in rows
    ]


def undisturbed() -> tuple[list[tuple[Any, ...]], Simulation]:
    simulation = Simulation(ExperimentSpec.model_validate(FEDAVG), seed=0)
    reports = []
    while not simulation.finished:
        reports.append(simulation.advance())
    return measures(iter(reports)), simulation


def test_a_run_of_a_bundle_is_stored_as_any_run(embedded: Site) -> None:
    id = embedded.submit(bundled(embedded), nudge=False)
    with embedded.runner() as runner:
        runner.work()
    run = embedded.run(id)
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    expected, simulation = undisturbed()
    assert measures(iter(embedded.rows(run.id))) == expected
    assert all(row.seconds > 0 for row in embedded.rows(run.id))
    assert run.model is not None
    with embedded.storage.open(run.model) as file:
        stored = load(file.read())
    assert stored.keys() == simulation.model().keys()
    assert all(stored[name].equal(tensor) for name, tensor in simulation.model().items())
    assert run.provenance is not None
    assert run.provenance["bundle"] == {
        "digest": bundled(embedded)["code"]["digest"],
        "files": ["mine.py"],
        "confinement": "bubblewrap",
    }


def test_a_run_that_is_handed_back_goes_on_with_the_same_bits(embedded: Site) -> None:
    id = embedded.submit(bundled(embedded), nudge=False)
    for _ in range(20):
        # Asked to end before each slice: a session is one round.
        asked = count()
        with embedded.runner(stopping=lambda asked=asked: next(asked) > 1) as runner:  # type: ignore[misc]
            runner.work()
        if embedded.run(id).status is Status.SUCCEEDED:
            break
        assert embedded.run(id).status is Status.QUEUED
    run = embedded.run(id)
    assert (run.status, run.error, run.fence > 1) == (Status.SUCCEEDED, None, True)
    assert measures(iter(embedded.rows(run.id))) == undisturbed()[0]


BROKEN = MINE.replace(
    '    kind: Literal["mine"]\n',
    '    kind: Literal["mine"]\n\n    def rule(self):\n        return 1 / len("")\n',
)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (BROKEN, ("ZeroDivisionError: division by zero (mine.py, line 13)", 'return 1 / len("")')),
        (MINE + "import os\nos._exit(0)\n", ("ended with exit code 0",)),
        (MINE + "while True:\n    pass\n", ("took longer than 3 s",)),
    ],
    ids=["raises", "exits", "loops"],
)
def test_a_bundle_fails_its_run_at_once_and_the_worker_goes_on(
    embedded: Site, source: str, said: tuple[str, ...]
) -> None:
    site = embedded.with_settings(code_round_seconds=3)
    failing = site.submit(bundled(site, source), nudge=False)
    another = site.submit(FEDAVG, nudge=False)
    with site.runner() as runner:
        runner.work()
    run = site.run(failing)
    assert (run.status, run.attempts) == (Status.FAILED, 1)
    assert run.error is not None
    assert all(part in run.error for part in said)
    assert "fedcore/" not in run.error
    assert site.run(another).status is Status.SUCCEEDED


def test_a_bundle_that_is_not_stored_is_named(embedded: Site) -> None:
    document = bundled(embedded)
    code = document["code"]
    embedded.storage.delete(bundles.storage_key(code["id"], code["digest"]))
    id = embedded.with_settings(attempts=1).submit(document, nudge=False)
    with embedded.with_settings(attempts=1).runner() as runner:
        runner.work()
    run = embedded.run(id)
    assert run.status is Status.FAILED
    assert f"bundle {code['id']} is not in the storage" in (run.error or "")


def test_uploaded_data_reach_the_bundle(embedded: Site, tmp_path: Path) -> None:
    from fedcore.data.uploaded import Uploaded
    from fedcore.data.user_datasets import UserSamples
    from fedcore.platform.uploads.dataset_storage import storage_key

    draw = np.random.default_rng(0)
    samples = UserSamples(
        features=draw.normal(size=(40, 5)),
        label=draw.integers(3, size=40),
        clients=None,
        test=np.arange(40) % 5 == 0,
    )
    with (tmp_path / "samples.npz").open("wb") as file:
        samples.save(file)
    content = (tmp_path / "samples.npz").read_bytes()
    with embedded.database.transaction() as session:
        record = datasets.create(
            session, datasets.new_id(session), samples.content, name="mine", client_sizes={}, size_bytes=0
        )
        uploaded = Uploaded(kind="uploaded", id=record.id, content=samples.content)
    embedded.storage.put(storage_key(record.id, samples.content.digest), content)
    problem = {
        "dataset": uploaded.model_dump(mode="json"),
        "partition": {"kind": "iid", "clients": 4},
        "model": {"kind": "logistic"},
    }
    id = embedded.submit(bundled(embedded, problem=problem), nudge=False)
    plain = embedded.submit({**FEDAVG, "problem": problem}, nudge=False)
    with embedded.runner() as runner:
        runner.work()
    assert embedded.run(id).error is None
    assert measures(iter(embedded.rows(embedded.run(id).id))) == measures(
        iter(embedded.rows(embedded.run(plain).id))
    )
