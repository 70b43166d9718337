"""Clients that cancel, pause, resume, extend, retry and delete the same experiments at once, while
workers carry them out and processes and connections are cut: at the end everything is counted again.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from math import isclose
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import func, select, text
from sqlalchemy.orm import undefer

from fedcore import ExperimentSpec
from fedcore.platform.access import Scope
from fedcore.platform.provenance import best_model_key
from fedcore.platform.store import (
    ENDED,
    Database,
    RunRequest,
    Session,
    Status,
    counters,
    curves,
    keys,
    lifecycle,
    quotas,
)
from fedcore.platform.store.blocks import StoredRound
from fedcore.platform.store.tables import (
    ArrivalRecord,
    ExperimentRecord,
    GroupRecord,
    KeyRecord,
    MemberRecord,
    RemovalRecord,
    RunRecord,
    SearchRecord,
)
from fedcore.simulation.simulation import Simulation
from fedq.client import Client, ConflictError, NotAllowedError, NotFoundError, ServiceUnreachableError
from fedq.client.errors import InvalidRequestError, ServiceUnavailableError
from tests.builders.specifications import SYNTHETIC, merged
from tests.chaos.callers import END_S, Gate
from tests.chaos.faults import CUT, at_the_server
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.deployment import Deployment

ACTORS, WORKERS, RECONCILERS = 6, 2, 2
MOST_EXPERIMENTS = 8
"""At a time: few, so that many changes meet in each."""
MOST_ROUNDS = 90
PAUSE_S = 0.5
"""Longest pause of an actor between two requests, in which workers play some rounds."""
FINISHED, SETTLED_S = 3, 300.0
"""Experiments that play to their end, and how long that may take."""
LIMITED = {"max_running_runs": 1, "max_waiting_runs": 12}
"""Quotas of the key of every other actor."""
EXACT = merged(
    SYNTHETIC, {"rounds": 30, "seeds": [0, 1], "execution": {"engine": "reference"}, "local": {"epochs": 4}}
)
"""Its bits do not depend on which runs are trained together."""
SEARCH = merged(
    EXACT,
    {
        "sweep": {"local.lr": [0.1, 0.03, 0.01, 0.003]},
        "search": {"kind": "successive_halving", "metric": "test_accuracy", "min_rounds": 5},
    },
)
REFUSED = (ConflictError, InvalidRequestError, NotAllowedError, NotFoundError)
"""Refusals of a request by the state of an experiment, a quota, or another actor."""
COUNTING = (
    "CREATE TABLE committed (rounds bigint)",
    """CREATE FUNCTION count_committed() RETURNS trigger LANGUAGE plpgsql AS
    'DECLARE before int := 0;
    BEGIN
        IF TG_OP = $$UPDATE$$ THEN
            before := OLD.last;
        ELSE
            SELECT coalesce(max(last), 0) INTO before FROM block
                WHERE run_id = NEW.run_id AND last < NEW.last;
        END IF;
        INSERT INTO committed VALUES (NEW.last - before);
        RETURN NULL;
    END'""",
    """CREATE TRIGGER counting AFTER INSERT OR UPDATE ON block
    FOR EACH ROW EXECUTE FUNCTION count_committed()""",
)
"""Counts the rounds that were ever committed, also of experiments that were deleted since."""


@dataclass
class Actors:
    """Threads that change experiments at random. Changes in place."""

    url: str
    keys: Sequence[str]
    requests: int
    """How many all of them make."""
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    """Requests that went through, by kind."""
    refused: Counter[str] = field(default_factory=Counter)
    away: int = 0
    wrong: list[str] = field(default_factory=list)
    """Answers that no client should get."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They act as long as the block lasts, or until all requests are made."""
        self._over = threading.Event()
        threads = [
            threading.Thread(target=self._act, args=(place, key)) for place, key in enumerate(self.keys)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
            for thread in threads:
                thread.join()
        finally:
            self._over.set()
            for thread in threads:
                thread.join(END_S)

    @property
    def made(self) -> int:
        """Requests that were answered, or given up."""
        return self.done.total() + self.refused.total() + self.away + len(self.wrong)

    def have_made(self, requests: int) -> bool:
        """True once so many requests were made."""
        return self.made >= requests

    def _act(self, place: int, key: str) -> None:
        draws = random.Random(self.seed + place)
        with Client(self.url, key, patience_s=2) as client:
            for _ in range(self.requests // len(self.keys)):
                if self._over.wait(draws.uniform(0, PAUSE_S)):
                    return
                act = draws.choices(list(ACTS), list(ACTS.values()))[0]
                name = act.__name__.strip("_")
                try:
                    act(client, draws)
                    self.done[name] += 1
                except REFUSED:
                    self.refused[name] += 1
                except (ServiceUnavailableError, ServiceUnreachableError):
                    self.away += 1
                except Exception as error:
                    self.wrong.append(f"{name}: {type(error).__name__}: {error}")


def _any_of(client: Client, draws: random.Random) -> str:
    """An experiment, or one that is made because there are few."""
    ids = [found.id for found in client.experiments()]
    if len(ids) < MOST_EXPERIMENTS:
        document = merged(draws.choice([EXACT, EXACT, SEARCH]), {"name": f"changed {draws.random()}"})
        return client.submit(document).id
    return draws.choice(ids)


def _cancel(client: Client, draws: random.Random) -> None:
    client.cancel(_any_of(client, draws))


def _pause(client: Client, draws: random.Random) -> None:
    client.pause(_any_of(client, draws))


def _resume(client: Client, draws: random.Random) -> None:
    client.resume(_any_of(client, draws))


def _retry(client: Client, draws: random.Random) -> None:
    client.retry(_any_of(client, draws))


def _extend_rounds(client: Client, draws: random.Random) -> None:
    id = _any_of(client, draws)
    rounds = client.experiment(id).specification["rounds"]
    client.extend(id, rounds=min(rounds + draws.randint(1, 20), MOST_ROUNDS))


def _extend_seeds(client: Client, draws: random.Random) -> None:
    client.extend(_any_of(client, draws), seeds=[draws.randint(0, 5)])


def _edit(client: Client, draws: random.Random) -> None:
    client.edit(_any_of(client, draws), priority=draws.randint(0, 9), tags=[f"tag {draws.randint(0, 3)}"])


def _delete(client: Client, draws: random.Random) -> None:
    client.delete(_any_of(client, draws))


def _read(client: Client, draws: random.Random) -> None:
    id = _any_of(client, draws)
    client.results(id)
    for run in client.runs(id):
        list(client.rounds(run.id))


ACTS: dict[Callable[[Client, random.Random], None], int] = {
    _cancel: 3,
    _pause: 4,
    _resume: 6,
    _retry: 5,
    _extend_rounds: 3,
    _extend_seeds: 2,
    _edit: 2,
    _delete: 2,
    _read: 2,
}
"""Requests of actors, and how often each is made in relation to the others."""


class Crowd:
    """API, workers and reconcilers on a deployment, started again when they end. Changes in place."""

    def __init__(self, deployment: Deployment, stack: ExitStack) -> None:
        self._deployment, self._stack = deployment, stack
        self.gate = Gate(deployment, stack)
        names = [f"worker-{place}" for place in range(WORKERS)]
        names += [f"reconciler-{place}" for place in range(RECONCILERS)]
        self.processes = {name: self._start(name) for name in names}

    def tend(self) -> None:
        """Start again what has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                self.processes[name] = self._start(name)

    def strike(self, draws: random.Random) -> str:
        """Kill a process, or cut all connections to the database; returns what."""
        what = draws.choice([*self.processes, *self.processes, "playing", "api", "connections"])
        if what == "connections":
            with closing(at_the_server(self._deployment.database.url)) as server:
                server.execute(CUT, (self._deployment.database.url.database,))
        elif what == "api":
            self.gate.kill()
        elif what == "playing":
            for pid in self._deployment.workers().values():
                _kill(pid)
        else:
            self.processes[what].kill()
        return what

    def _start(self, name: str) -> Forked:
        module = f"workers.{name.partition('-')[0]}"
        log = self._deployment.folder / f"{name}-{time.monotonic_ns()}.log"
        folder, environment = self._deployment.folder, self._deployment.environment
        return self._stack.enter_context(forked(module, log=log, environment=environment, folder=folder))


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def change_at_once(
    deployment: Deployment,
    requests: int,
    strikes: int,
    seed: int,
    tell: Callable[[str], object] = lambda _: None,
) -> Actors:
    """Let actors change the experiments of a deployment on PostgreSQL, and count everything again."""
    draws, url = random.Random(seed), deployment.database.url
    # Connections of its own at either end: what strikes may cut one in between.
    with closing(at_the_server(url)) as server:
        for statement in COUNTING:
            server.execute(statement)
        deadlocks = _deadlocks(server)
    with ExitStack() as stack:
        own = [_key(deployment.database, **(LIMITED if place % 2 else {})) for place in range(ACTORS)]
        crowd = Crowd(deployment, stack)
        actors = Actors(crowd.gate.url, own, requests, seed)
        with actors.at_work():
            for strike in range(1, strikes + 1):
                # Evenly among the requests, however slow the machine.
                eventually(partial(actors.have_made, strike * requests // (strikes + 1)), END_S)
                tell(f"{actors.made:6} requests, then: {crowd.strike(draws)}")
                crowd.tend()
        with Client(crowd.gate.url, own[0]) as client, closing(at_the_server(url)) as server:
            _end_all(client)
            # What a killed reconciler was removing is another's after 20 minutes.
            server.execute("UPDATE storage_removal SET due_at = clock_timestamp()")
            eventually(partial(_is_settled, deployment.database, crowd), SETTLED_S)
    # No process is left that could write.
    found = [*actors.wrong, *recount(deployment.database, Path(deployment.environment["FEDQ_STORAGE_URL"]))]
    with closing(at_the_server(url)) as server:
        found += [f"{more} deadlocks" for more in [_deadlocks(server) - deadlocks] if more]
    found += [f"{log.name}: {line}" for log in deployment.folder.glob("*.log") for line in _complaints(log)]
    assert not found, "\n".join(found)
    return actors


def _key(database: Database, **quota: Any) -> str:
    """Another key of the owner of all experiments."""
    with database.transaction() as session:
        return keys.create(session, owner="lab", scope=Scope.SUBMIT, **quota)[1].text


def _deadlocks(server: psycopg.Connection) -> int:
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    (number,) = server.execute(query).fetchone() or (0,)
    return int(number)


def _end_all(client: Client) -> None:
    """Let a few experiments play on to their end, and cancel the others."""
    for place, found in enumerate(client.experiments()):
        acts = [client.resume, client.retry] if place < FINISHED else [client.cancel]
        for act in acts:
            with suppress(*REFUSED):
                act(found.id)


def _is_settled(database: Database, crowd: Crowd) -> bool:
    """True once all runs have ended, and all files of deleted ones are gone."""
    crowd.tend()
    with database.reading() as session:
        open_runs = session.scalar(
            select(func.count()).select_from(RunRecord).where(RunRecord.status.not_in(ENDED))
        )
        return not open_runs and not session.scalar(select(func.count()).select_from(RemovalRecord))


def _complaints(log: Path) -> Iterator[str]:
    """Lines of a log that say that something was not foreseen."""
    for line in log.read_text(errors="replace").splitlines():
        if any(
            word in line
            for word in ("not reconciled", "did not work", "no heartbeat:", " 500 ", '"status": 500')
        ):
            yield line


def recount(database: Database, folder: Path) -> Iterator[str]:
    """Yield what does not agree: rows, counters, quotas, statuses, and the files in the storage `folder`."""
    with database.reading() as session:
        whole = undefer(RunRecord.figures)
        runs = session.scalars(select(RunRecord).options(whole).order_by(RunRecord.id)).all()
        experiments = session.scalars(select(ExperimentRecord)).all()
        for experiment in experiments:
            own = [run for run in runs if run.experiment_id == experiment.id]
            yield from _flaws_of_experiment(experiment, own)
        played = {(run.id): curves.after(session, run.id, limit=10_000) for run in runs}
        for run in runs:
            yield from _flaws_of_run(run, played[run.id])
        yield from _flaws_of_sums(session, runs)
        yield from _left_over(session, {experiment.id for experiment in experiments})
    specs = {experiment.id: ExperimentSpec.model_validate(experiment.spec) for experiment in experiments}
    for run in runs:
        yield from _flaws_of_bits(run, specs[run.experiment_id], played[run.id])
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    yield from _flaws_of_files(runs, files)


def _flaws_of_experiment(experiment: ExperimentRecord, runs: Sequence[RunRecord]) -> Iterator[str]:
    spec = ExperimentSpec.model_validate(experiment.spec)
    wanted = sorted((arm.index, seed) for arm in spec.arms() for seed in spec.seeds)
    if sorted((run.arm, run.seed) for run in runs) != wanted:
        yield f"{experiment.id} has not each arm with each seed"
    if {run.rounds for run in runs} != {spec.rounds}:
        yield f"{experiment.id}: its runs have other rounds than its specification"
    expected = lifecycle.derive_status(Counter(run.status for run in runs), started=True)
    if experiment.status is not expected or experiment.finished_at is None:
        yield f"{experiment.id} is {experiment.status}, and its runs make it {expected}"


def _flaws_of_run(run: RunRecord, rows: Sequence[StoredRound]) -> Iterator[str]:
    if [row.round for row in rows] != list(range(1, run.done + 1)):
        yield f"{run.id} has rounds {[row.round for row in rows]} of {run.done}"
    if (run.request, run.lease_until) != (RunRequest.NONE, None):
        yield f"{run.id} has ended with a request {run.request} or a lease"
    whole = run.done == run.rounds or run.stop_reason is not None
    if run.done > run.rounds or (run.status is Status.SUCCEEDED) > whole:
        yield f"{run.id} is {run.status} after {run.done} of {run.rounds} rounds"
    if run.status is Status.FAILED:
        yield f"{run.id} failed: {run.error}"
    if not isclose(run.seconds, sum(row.seconds for row in rows), abs_tol=1e-6):
        yield f"{run.id} took {run.seconds} s, and its rounds {sum(row.seconds for row in rows)}"
    for measure in ("bytes_up", "bytes_down"):
        total = run.figures[measure][4] if run.figures else 0
        if total != sum(getattr(row, measure) for row in rows):
            yield f"{run.id}: {measure} of its figures is not the sum of its rounds"


def _flaws_of_sums(session: Session, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Counters and quotas, which include what was deleted."""
    counted, committed = counters.totals(session), session.scalar(text("SELECT sum(rounds) FROM committed"))
    if counted[counters.ROUNDS] != committed:
        yield f"{counted[counters.ROUNDS]} rounds were counted, and {committed} committed"
    used = [quotas.usage(session, key) for key in session.scalars(select(KeyRecord))]
    spent = sum(usage.compute_seconds for usage in used)
    if not isclose(spent, counted[counters.SLICE_SECONDS], rel_tol=1e-9):
        yield f"keys have spent {spent} s, and slices took {counted[counters.SLICE_SECONDS]} s"
    if any(usage.waiting_runs or usage.running_runs for usage in used):
        yield f"keys have runs that wait or run: {used}"


def _left_over(session: Session, experiment_ids: set[str]) -> Iterator[str]:
    emptied: tuple[Any, ...] = (GroupRecord, MemberRecord, RemovalRecord)
    for record in emptied:
        if session.scalar(select(func.count()).select_from(record)):
            yield f"{record.__tablename__} is not empty"
    of_experiments: tuple[Any, ...] = (SearchRecord, ArrivalRecord)
    for record in of_experiments:
        if strangers := set(session.scalars(select(record.experiment_id))) - experiment_ids:
            yield f"{record.__tablename__} is of experiments that are gone: {strangers}"


def _flaws_of_bits(run: RunRecord, spec: ExperimentSpec, rows: Sequence[StoredRound]) -> Iterator[str]:
    """Whatever was done to a run, its rounds are those of the library."""
    expected = _measures_of(spec.model_dump_json(), run.arm, run.seed, run.done)
    for row, measures in zip(rows, expected, strict=False):
        if (row.round, row.train_loss, row.bytes_up) != measures:
            yield f"{run.id} differs from the library in round {row.round}"
            return


@cache
def _measures_of(spec: str, arm: int, seed: int, rounds: int) -> list[tuple[int, float | None, int]]:
    """The first rounds of a run that nobody changes."""
    found = ExperimentSpec.model_validate_json(spec).arms()[arm].spec
    simulation = Simulation(found, seed, arm=arm)
    reports = [simulation.advance() for _ in range(rounds)]
    return [(report.round, report.train_loss, report.bytes_up) for report in reports]


def _flaws_of_files(runs: Sequence[RunRecord], files: set[str]) -> Iterator[str]:
    if strangers := {key.partition("/")[0] for key in files} - {run.id for run in runs}:
        yield f"files of runs that are gone: {strangers}"
    for run in runs:
        best = None if run.model is None else best_model_key(run.model, run.provenance)
        named = {key for key in (run.checkpoint, run.model, best) if key is not None}
        if run.status is Status.SUCCEEDED and run.model is None:
            yield f"{run.id} has succeeded without a model"
        if missing := named - files:
            yield f"{run.id} has lost {missing}"
