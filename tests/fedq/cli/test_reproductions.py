"""`fedq reproduce-paper`, its runs played in this process."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest

from fedcore import presets
from fedcore.platform.store import runs
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from tests.api.histories import write
from tests.fedq.cli.conftest import Fedq
from tests.support.polling import eventually
from tests.support.service import Service

SHEET = "fedlin-figure-1"
RUNS = 6


@pytest.fixture
def worker(service: Service) -> Iterator[None]:
    """Plays the runs of the sheet as soon as they are there."""

    def play() -> None:
        eventually(lambda: waiting(service) == RUNS, timeout_s=60)
        write(service.database, played, RUNS)

    thread = Thread(target=play)
    thread.start()
    yield
    thread.join()


def waiting(service: Service) -> int:
    with service.database.reading() as session:
        return len(runs.ids(session))


def played(held: Claim) -> Sequence[RoundReport]:
    arm = ExperimentSpec.model_validate(held.spec).arms()[held.arm]
    simulation = Simulation(arm.spec, held.seed, arm=held.arm)
    return [simulation.advance() for _ in range(arm.spec.rounds)]


@pytest.mark.slow
def test_a_figure_is_run_again_drawn_and_judged(fedq: Fedq, worker: None, tmp_path: Path) -> None:
    outcome = fedq("reproduce-paper", SHEET, "--output", str(tmp_path), "--json")
    assert outcome.code == 0, outcome.err
    panels = json.loads(outcome.out)
    assert [claim["holds"] for panel in panels for claim in panel["claims"]] == [True] * 4
    assert json.loads((tmp_path / f"{SHEET}.json").read_text()) == panels
    assert (tmp_path / f"{SHEET}.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / f"{SHEET}.svg").read_text()
    assert all(name in drawn for name in ("FedProx", "FedNova", "FedLin"))
    told = (tmp_path / f"{SHEET}.md").read_text()
    assert told.count("| holds |") == 4
    assert all(departure in told for departure in presets.sheet(SHEET).departures)


def test_what_can_be_run_again_is_listed(fedq: Fedq) -> None:
    listed = fedq("reproduce-paper").out
    assert SHEET in listed
    assert "same-steps" in listed
    assert "demo" not in listed
    every = json.loads(fedq("reproduce-paper", "--json").out)
    assert all(presets.meant_by(preset["name"], small=False) for preset in every)


def test_a_figure_that_is_not_there_is_refused_with_those_that_are(fedq: Fedq) -> None:
    outcome = fedq("reproduce-paper", "fedlin-figure-9")
    assert outcome.code == 2
    assert SHEET in outcome.err
