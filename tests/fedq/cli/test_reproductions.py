"""`fedq reproduce` of figures of papers, their runs played in this process."""

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
from fedq.client import Client
from tests.builders.claims import change_rounds, claim, end_runs, fail, report
from tests.builders.specifications import TWO_ARMS
from tests.fedq.cli.conftest import Fedq
from tests.support.polling import eventually
from tests.support.service import Service

SHEET = "fedlin-figure-1"
RUNS = 12


@pytest.fixture
def worker(service: Service) -> Iterator[None]:
    """Plays the runs of the sheet as soon as they are there."""

    def play() -> None:
        eventually(lambda: waiting(service) == RUNS, timeout_s=60)
        end_runs(service.database, played, RUNS)

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
    outcome = fedq("reproduce", SHEET, "--output", str(tmp_path), "--json")
    assert outcome.code == 0, outcome.err
    panels = json.loads(outcome.out)
    assert [claim["verdict"] for panel in panels for claim in panel["claims"]] == ["holds"] * 4
    assert json.loads((tmp_path / f"{SHEET}.json").read_text()) == panels
    assert (tmp_path / f"{SHEET}.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / f"{SHEET}.svg").read_text()
    assert all(name in drawn for name in ("FedProx", "FedNova", "FedLin"))
    told = (tmp_path / f"{SHEET}.md").read_text()
    assert told.count("| holds |") == 4
    assert all(departure in told for departure in presets.sheet(SHEET).departures)


def test_figures_that_can_be_run_again_are_listed(fedq: Fedq) -> None:
    listed = fedq("reproduce").out
    assert SHEET in listed
    assert "same-steps" in listed
    assert "demo" not in listed
    every = json.loads(fedq("reproduce", "--json").out)
    assert all(presets.meant_by(preset["name"], small=False) for preset in every)


def test_a_figure_that_is_not_there_is_refused_with_those_that_are(fedq: Fedq) -> None:
    outcome = fedq("reproduce", "fedlin-figure-9")
    assert outcome.code == 4
    assert SHEET in outcome.err
    assert "'demo' is no figure or table" in fedq("reproduce", "demo").err
    for options in (("fedlin-figure-9", "--small"), ("fedlin-figure-9", "--output", "x"), (SHEET, "--check")):
        assert fedq("reproduce", *options).code == 2


# `fedq reproduce`: what it prints, and the exit code that a pipeline goes by.


def _history(held: Claim) -> list[RoundReport]:
    return [report(round, train_loss=1 / (round + held.seed + held.arm)) for round in (1, 2, 3)]


def _play(service: Service) -> None:
    """Play the six runs of a repetition as soon as they are there."""

    def waiting() -> int:
        with service.database.reading() as session:
            return len(runs.ids(session)) - 6

    eventually(lambda: waiting() == 6, timeout_s=60)
    end_runs(service.database, _history, 6)


def test_a_repetition_is_carried_out_and_compared(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    end_runs(service.database, _history, 6)
    player = Thread(target=_play, args=[service])
    player.start()
    done = fedq("reproduce", original.id)
    player.join()
    assert done.code == 0, done.err
    repetition = next(item.id for item in client.experiments() if item.id != original.id)
    assert f"{repetition} reproduces {original.id}" in done.err
    assert "identical (6 runs, 18 rounds and 0 final models compared)" in " ".join(done.out.split())
    assert fedq("reproduce", repetition, "--check").code == 0

    changed = client.runs(repetition)[4].id
    change_rounds(
        service.database,
        changed,
        lambda rows: [row | ({"train_loss": 0.5} if row["round"] > 1 else {}) for row in rows],
    )
    told = fedq("reproduce", repetition, "--check")
    assert told.code == 1
    assert "different" in told.out
    assert "lr=0.05 1 2 train_loss 0.25 0.5 5.0e-01" in " ".join(told.out.split())
    assert fedq("reproduce", original.id, "--check").code == 4


def test_a_repetition_that_fails_says_so_and_why(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    end_runs(service.database, _history, 6)
    repetition = client.reproduce(original.id).id
    fail(service.database, claim(service.database), "DataUnavailableError: no file of the data set")
    end_runs(service.database, _history, 5)
    told = fedq("reproduce", repetition, "--check")
    assert told.code == 1
    assert f"{repetition} reproduces {original.id}: failed (" in " ".join(told.out.split())
    assert "error: DataUnavailableError: no file of the data set" in told.out


def test_a_repetition_under_way_is_neither(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    end_runs(service.database, _history, 6)
    told = fedq("reproduce", client.reproduce(original.id).id, "--check")
    assert (told.code, "pending" in told.out) == (4, True)
