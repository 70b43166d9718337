"""A run that uses installed packages goes only to workers that have the same versions."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from sqlalchemy import event

from fedcore.platform.store import (
    Database,
    Status,
    curves,
    experiments,
    extension,
    queue_view,
    runs,
    scheduler,
    wait_reasons,
    workers,
)
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claim
from tests.builders.claims import LEASE_S, QUEUE, WORKER, claimant, commit_slice, lose, report
from tests.builders.experiments import runs_of, submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import read, write

FEDEXP, OTHER = "ourlab-fedexp 1.2", "theirs 0.3"


def queued(database: Database, *needed: Sequence[str], **changes: object) -> str:
    """An experiment whose arms need these packages; its id."""
    sweep = {"local.lr": [0.1 * (number + 1) for number in range(len(needed))]}
    spec = specification(ONE_RUN, sweep=sweep, **changes)
    packages = {
        (arm, seed): json.dumps(sorted(wanted)) if wanted else None
        for arm, wanted in enumerate(needed)
        for seed in spec.seeds
    }
    new = NewExperiment(spec, run_packages=packages)
    return write(database, experiments.create, new).record.id


def taken(database: Database, *have: str, worker: str = WORKER) -> Claim | None:
    """Run that a worker with these packages takes."""
    return write(database, runs.claim, claimant(worker, packages=have), LEASE_S)


def present(database: Database, worker: str, *have: str, memory_bytes: int | None = None) -> None:
    about: dict[str, Any] = {"host": "here", "pid": 1, "queues": [QUEUE], "device": "cpu", "run_id": None}
    write(database, workers.seen, worker, **about, packages=have, memory_bytes=memory_bytes)


def why(database: Database, experiment_id: str) -> list[str | None]:
    """Why each of its runs waits."""
    with database.reading() as session:
        found = runs.of_experiment(session, experiment_id)
        held = wait_reasons.reasons(session, found, 60.0)
        return [held.get(run.id) for run in found]


def test_a_worker_takes_runs_whose_packages_it_has_in_the_same_version(database: Database) -> None:
    queued(database, [FEDEXP], [], [FEDEXP, OTHER], execution={"priority": 9})
    for have in ((), ("ourlab-fedexp 1.3",), (OTHER,)):
        held = taken(database, *have)
        assert (held and held.arm) == (1 if have == () else None)
    assert [taken(database, FEDEXP), taken(database, FEDEXP)][1] is None
    held = taken(database, OTHER, FEDEXP, "another 1")
    assert held is not None
    assert held.arm == 2


@pytest.mark.parametrize(("have", "control"), [((), "continue"), ((FEDEXP,), "yield")])
def test_a_run_gives_way_only_to_what_its_worker_has_the_packages_for(
    database: Database, have: tuple[str, ...], control: str
) -> None:
    submit(database)
    held = taken(database, *have)
    assert held is not None
    queued(database, [FEDEXP], execution={"priority": 9})
    assert commit_slice(database, held) == control
    assert read(database, runs.should_interrupt, [held]) is (control == "yield")


def test_a_batch_has_only_runs_whose_packages_its_worker_has(database: Database) -> None:
    queued(database, [], [FEDEXP], [OTHER], [])
    held = taken(database, OTHER)
    assert held is not None
    mates = write(database, runs.claim_batch, held, [0, 1, 2, 3], 7, lease_s=LEASE_S, seen_s=LEASE_S)
    assert {held.arm, *(mate.arm for mate in mates)} == {0, 2, 3}


def test_idle_workers_without_the_packages_get_no_part_of_a_batch(database: Database) -> None:
    queued(database, [FEDEXP], [FEDEXP], [FEDEXP], [FEDEXP])
    for number in range(3):
        present(database, f"idle {number}")
    held = taken(database, FEDEXP)
    assert held is not None
    mates = write(database, runs.claim_batch, held, [0, 1, 2, 3], 7, lease_s=LEASE_S, seen_s=LEASE_S)
    assert len(mates) == 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_packages_of_queued_runs_are_read_from_the_partial_index(database: Database) -> None:
    asked: list[tuple[str, Any]] = []
    with database.reading() as session:
        session.connection()
        event.listen(
            session.get_bind(), "before_cursor_execute", lambda _, __, *given: asked.append(given[:2])
        )
        scheduler.usable_packages(session, [FEDEXP])
        ((statement, parameters),) = asked
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert "USING COVERING INDEX run_by_packages" in plan[0].detail


def test_a_measure_of_a_package_can_be_read_by_its_name(database: Database) -> None:
    submit(database)
    held = taken(database)
    assert held is not None
    commit_slice(
        database, held, [report(1, extra={"ourlab/norm": 0.5}), report(2, extra={"ourlab/norm": 0.25})]
    )
    with database.reading() as session:
        run = runs.find(session, held.run_id)
        assert [curves.value(session, run, "ourlab/norm", round) for round in (1, 2, 3)] == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
def test_no_worker_ever_holds_a_run_whose_packages_it_lacks(database: Database, seed: int) -> None:
    """Whatever is submitted, claimed, batched, lost and handed back in whatever order."""
    draw = Random(seed)
    every = [FEDEXP, OTHER, "ourlab-fedexp 1.3"]
    have = {f"worker {number}": draw.sample(every, number % 4) for number in range(4)}
    for _ in range(40):
        worker = draw.choice(list(have))
        match draw.choice(["submit", "claim", "claim", "batch", "lose", "release"]):
            case "submit":
                arms = [draw.sample(every, draw.choice([0, 0, 1, 2])) for _ in range(draw.randint(1, 3))]
                queued(database, *arms, execution={"priority": draw.randint(4, 6)})
            case "lose":
                write(database, runs.claim, claimant(worker, packages=tuple(have[worker])), -1.0)
                lose(database)
            case action:
                held = taken(database, *have[worker], worker=worker)
                if held is not None and action == "batch":
                    write(database, runs.claim_batch, held, [0, 1, 2], 3, lease_s=LEASE_S, seen_s=LEASE_S)
                elif held is not None and action == "release":
                    write(database, runs.release, held)
                elif held is None:
                    # Nothing is left that it could have taken.
                    assert not [run for run in _all(database, Status.QUEUED) if _has(have[worker], run)]
        for run in _all(database, Status.RUNNING):
            assert _has(have[run.worker], run)


def _all(database: Database, status: Status) -> list[Any]:
    with database.reading() as session:
        found = [runs.find(session, run_id) for run_id in runs.ids(session)]
    return [run for run in found if run.status is status]


def _has(have: Sequence[str], run: Any) -> bool:
    return set(json.loads(run.packages or "[]")) <= set(have)


def test_a_run_says_which_package_no_worker_has(database: Database) -> None:
    made = queued(database, [], [FEDEXP])
    present(database, "w1", "ourlab-fedexp 1.3")
    assert why(database, made) == [
        None,
        (
            "no worker has ourlab-fedexp 1.2: install it on workers of the queue 'default'; they have"
            " ourlab-fedexp 1.3"
        ),
    ]
    present(database, "w2", FEDEXP)
    assert why(database, made) == [None, None]


def test_packages_on_different_workers_do_not_make_a_suitable_one(database: Database) -> None:
    made = queued(database, [FEDEXP, OTHER])
    present(database, "w1", FEDEXP)
    present(database, "w2", OTHER)
    assert why(database, made) == [
        (
            "no worker has all of ourlab-fedexp 1.2, theirs 0.3: install them on one worker of the queue"
            " 'default'"
        )
    ]


def test_memory_counts_on_workers_with_the_packages_only(database: Database) -> None:
    spec = specification(ONE_RUN)
    packages = {(0, 0): json.dumps([FEDEXP])}
    new = NewExperiment(spec, run_packages=packages, memory_bytes=[4 << 30])
    made = write(database, experiments.create, new).record
    present(database, "small", FEDEXP, memory_bytes=1 << 30)
    present(database, "large")
    (reason,) = why(database, made.id)
    assert reason is not None
    assert reason.startswith(
        "needs about 4.3 GB of memory, but workers of the queue 'default' have at most 1.1"
    )


def test_the_queue_says_why_an_experiment_waits_if_none_of_its_runs_can_start(database: Database) -> None:
    present(database, "w1")
    queued(database, [FEDEXP], [OTHER], name="none can", execution={"priority": 9})
    queued(database, [FEDEXP], [], name="one can")
    with database.reading() as session:
        found = queue_view.queue_positions(session, 60.0)
    assert [(item.entry.name, item.position) for item in found] == [("one can", 1), ("none can", None)]
    assert found[1].reason is not None
    assert "no worker has" in found[1].reason


def test_a_plan_warns_of_packages_that_no_worker_has(database: Database) -> None:
    present(database, "w1", OTHER)
    needed = [None, json.dumps([OTHER]), json.dumps([FEDEXP])]
    with database.reading() as session:
        assert wait_reasons.obstacles(session, QUEUE, 0, needed, 60.0) == [
            (
                "some of the runs would wait: no worker has ourlab-fedexp 1.2: install it on workers of the"
                " queue 'default'"
            )
        ]


def test_seeds_that_are_added_need_the_versions_of_their_arm(database: Database) -> None:
    made = queued(database, [], [FEDEXP])
    write(
        database,
        extension.extend,
        made,
        rounds=None,
        seeds=[1],
        measure=lambda spec: [0] * spec.arm_count,
    )
    found = read(database, experiments.find, made)
    assert [(run.arm, run.packages) for run in runs_of(database, found)] == [
        (0, None),
        (1, json.dumps([FEDEXP])),
        (0, None),
        (1, json.dumps([FEDEXP])),
    ]
